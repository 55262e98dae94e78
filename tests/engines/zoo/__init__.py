"""Graphs that an engine must get right, each named by what it may break."""

from tests.engines.zoo._registry import CASES, Case, default_dtype

from tests.engines.zoo import composed, layers, losses, mixing, odd, reuse, sequences, tasks  # isort: skip  # noqa: F401

#: One graph of each kind, for what does not depend on the graph.
FEW = (
    *("linear_on_sequences", "conv2d_with_stride_dilation_and_groups", "conv_transpose1d"),
    *("group_norm", "lstm", "embedding_with_padding", "attention_across_the_batch"),
    *("batch_norm_in_training", "module_called_twice", "tasks_on_different_batches"),
    *("instances_and_tasks", "checkpointed_block", "losses_minus_their_mean"),
    *("unused_parameters", "detached_branch"),
)

__all__ = ["CASES", "FEW", "Case", "default_dtype"]

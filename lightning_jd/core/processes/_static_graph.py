"""DistributedDataParallel with ``static_graph=True``: its first reduction is started by us.

In the first iteration it learns which parameters are used, and reduces all gradients at its end.
The end is that of the first backward pass through its output, which it watches by a node in the
graph. For us that pass only differentiates losses, whose weights are not known yet. So we leave the
node out, or make it do nothing, and start the reduction when the gradients are delivered.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.autograd import Variable


@contextmanager
def first_reduction_held(model: Any) -> Iterator[None]:
    """Neither a forward nor a backward pass meanwhile starts the first reduction.

    Args:
        model: What the strategy has wrapped; nothing happens if that has no static graph.
    """
    if not _is_first(model):
        yield
        return
    model._static_graph_delay_allreduce_enqueued = True
    try:
        yield
    finally:
        model._static_graph_delay_allreduce_enqueued = False


def start_first_reduction(model: Any, scalar: Tensor) -> None:
    """Have the backward pass of ``scalar`` end with the first reduction, if that is still due.

    It is not for a micro-batch that is accumulated without one.
    """
    if not _is_first(model) or not model.require_backward_grad_sync:
        return
    reduce = model.reducer._delay_all_reduce
    scalar.register_hook(lambda _: Variable._execution_engine.queue_callback(reduce))
    model._static_graph_delay_allreduce_enqueued = True


def _is_first(model: Any) -> bool:
    static = getattr(model, "static_graph", False)
    return bool(static) and not model._static_graph_delay_allreduce_enqueued

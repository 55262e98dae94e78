"""Notices tasks that were stacked into a vector, where each would be taken for an example."""

from __future__ import annotations

import warnings

from torch import Tensor
from torch.utils._pytree import tree_leaves

from lightning_jd.engines import Objectives

_DEEP = 8  # operations between the losses and `torch.stack`


def warn_stacked(objectives: Objectives, batch: object) -> None:
    """Warn of a vector that `torch.stack` made of other than one loss per example of the batch.

    Args:
        objectives: The losses, as they are read.
        batch: The arguments of ``training_step``; the first tensor has the size of the batch.
    """
    losses = objectives.losses
    if objectives.kind != "instances" or not isinstance(losses, Tensor) or not _is_stacked(losses):
        return
    sizes = [leaf.shape[0] for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim]
    if objectives.m in sizes[:1]:
        return
    warnings.warn(
        f"`torch.stack` has made a vector of {objectives.m} losses, which are read as one "
        "objective per example. If they are tasks, return the list or a dict instead, or set "
        "rows='tasks'.",
        UserWarning,
        stacklevel=2,
    )


def _is_stacked(losses: Tensor) -> bool:
    """Whether a vector is the result of ``torch.stack``, up to operations on each entry."""
    node = losses.grad_fn
    for _ in range(_DEEP):
        if node is None or node.name() == "StackBackward0":
            return node is not None
        before = [function for function, _ in node.next_functions if function is not None]
        node = before[0] if len(before) == 1 else None
    return False

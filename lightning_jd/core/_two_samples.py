"""Two independent samples of every task, for methods that need them."""

from __future__ import annotations

from torch import Tensor

from lightning_jd.aggregators import Method
from lightning_jd.aggregators._halves import SUFFIXES
from lightning_jd.engines import Objectives
from lightning_jd.errors import ArgumentError


def in_halves(method: Method, objectives: Objectives, piece: int | None = None) -> Objectives:
    """The losses as two samples of each task, where the method needs them.

    Args:
        method: The method.
        objectives: The losses. Of a matrix (instance and task), every other instance belongs to
            the second sample.
        piece: The number of the micro-batch within a step that aggregates all of them; its losses
            are the first sample if it is even, and the second if it is odd.

    Raises:
        ArgumentError: If there is only one sample.

    Example:
        >>> import torch
        >>> from lightning_jd.aggregators import MoDo
        >>> losses = torch.tensor([[1.0], [3.0], [5.0]], requires_grad=True)
        >>> split = in_halves(MoDo(), Objectives.of(losses))
        >>> dict(zip(split.names, split.values().tolist()))
        {'0 (first half)': 3.0, '0 (second half)': 3.0}
    """
    if not method.halves:
        return objectives
    losses = objectives.losses
    if objectives.kind == "instances_tasks" and isinstance(losses, Tensor) and len(losses) > 1:
        means = [losses[start::2].mean(dim=0) for start in range(2)]
        names = tuple(f"{k}{end}" for end in SUFFIXES for k in range(losses.shape[1]))
        return Objectives(names, "tasks", tuple(loss for half in means for loss in half.unbind()))
    if objectives.kind == "tasks" and piece is not None:
        names = tuple(name + SUFFIXES[piece % 2] for name in objectives.names)
        return Objectives(names, "tasks", losses)
    raise ArgumentError(
        f"{type(method).__name__} must have two independent samples of every task, got one of "
        f"{objectives.m} {objectives.kind.replace('_', ' x ')}. Return a matrix of losses "
        "(instance and task), of which each half is a sample, or set accumulation='step' and "
        "accumulate_grad_batches=2, so that consecutive batches are."
    )

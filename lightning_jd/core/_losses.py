"""The losses as rows of the Jacobian, of this process among others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lightning_jd.aggregators import Method
from lightning_jd.aggregators._halves import SUFFIXES
from lightning_jd.core._arguments import RowsOption
from lightning_jd.core.processes._pool import Pool
from lightning_jd.engines import Losses, Objectives
from lightning_jd.errors import ArgumentError


def objectives_of(losses: Losses | Objectives, rows: RowsOption | None) -> Objectives:
    """Read the losses as rows of the Jacobian.

    Args:
        losses: A vector, a matrix, a list or a dict of named scalars.
        rows: ``None`` to read them by their type. Otherwise each entry is a ``"tasks"`` or an
            ``"instances"`` row, and a matrix (b, k) is averaged over the other of the two. With
            ``"ranks"``, the scalar loss of this process is one row, and there is one per process.

    On several processes, some of them may have nothing: an empty vector or matrix, or no task.

    Raises:
        ArgumentError: If rows are ranks and there is more than a scalar.

    Example:
        >>> import torch
        >>> losses = torch.ones(4, 2, requires_grad=True) * 1
        >>> [objectives_of(losses, rows).m for rows in (None, "tasks", "instances")]
        [8, 2, 4]
    """
    if isinstance(losses, Objectives):
        return losses
    pool = Pool()
    if rows == "ranks":
        if not isinstance(losses, Tensor) or losses.ndim > 0:
            what = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise ArgumentError(
                "With rows='ranks' the loss must be a scalar, the objective of this process, got "
                f"{what}. Return its mean or sum, or remove `rows`."
            )
        return replace(Objectives.of(losses), kind="ranks", names=(str(pool.rank),))
    if pool.size > 1 and (nothing := _nothing(losses)) is not None:
        return nothing
    if rows is not None and isinstance(losses, Tensor) and losses.ndim == 2:
        losses = losses.mean(dim=0 if rows == "tasks" else 1)
    return Objectives.of(losses, rows)


def _nothing(losses: Losses) -> Objectives | None:
    """Objectives without a row, if that is what the losses are."""
    if isinstance(losses, Tensor):
        if losses.ndim not in (1, 2) or losses.numel():
            return None
        return Objectives((), "instances" if losses.ndim == 1 else "instances_tasks", losses)
    entries = losses.values() if isinstance(losses, Mapping) else losses
    if not isinstance(losses, Mapping | Sequence) or any(loss is not None for loss in entries):
        return None
    return Objectives((), "tasks", torch.zeros(0, requires_grad=True))


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

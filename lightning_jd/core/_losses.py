"""The losses as rows of the Jacobian, of this process among others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lightning_jd.core._options import RowsOption
from lightning_jd.core.processes._pool import Pool
from lightning_jd.engines import Losses, Objectives
from lightning_jd.errors import ArgumentError


def objectives_of(
    losses: Losses | Objectives, rows: RowsOption | None, pool: Pool | None = None
) -> Objectives:
    """Read the losses as rows of the Jacobian.

    Args:
        losses: A vector, a matrix, a list or a dict of named scalars.
        rows: ``None`` to read them by their type. Otherwise each entry is a ``"tasks"`` or an
            ``"instances"`` row, and a matrix (b, k) is averaged over the other of the two. With
            ``"ranks"``, the scalar loss of this process is one row, and there is one per process.
        pool: The processes; all of them by default.

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
    pool = pool or Pool()
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

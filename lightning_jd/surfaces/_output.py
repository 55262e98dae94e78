"""What ``training_step`` returned: losses for us, a scalar and everything else for Lightning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lightning_jd.core import Pool
from lightning_jd.engines import Losses, Objectives
from lightning_jd.errors import ArgumentError
from lightning_jd.surfaces._settings import RowsOption


def loss_in(output: Any) -> Any:
    """What ``training_step`` returned as the loss, whatever it is."""
    return output.get("loss") if isinstance(output, Mapping) else output


def unless_scalar(loss: Any, rows: RowsOption | None = None) -> Losses | None:
    """The losses, or ``None`` if it is one scalar (or nothing), which Lightning knows to handle."""
    if loss is None or (rows != "ranks" and isinstance(loss, Tensor) and loss.ndim == 0):
        return None
    return loss  # type: ignore[no-any-return]  # whatever it is: `Objectives` says what it must be


def with_scalar(output: Any, value: Tensor) -> Any:
    """The same output with one number in the place of the losses.

    Example:
        >>> import torch
        >>> with_scalar({"loss": torch.ones(2), "accuracy": 0.5}, torch.tensor(1.0))
        {'loss': tensor(1.), 'accuracy': 0.5}
    """
    return {**output, "loss": value} if isinstance(output, Mapping) else value


def objectives_of(losses: Losses, rows: RowsOption | None) -> Objectives:
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
    if rows == "ranks":
        if not isinstance(losses, Tensor) or losses.ndim > 0:
            what = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise ArgumentError(
                "With rows='ranks' the loss must be a scalar, the objective of this process, got "
                f"{what}. Return its mean or sum, or remove `rows`."
            )
        return replace(Objectives.of(losses), kind="ranks", names=(str(Pool().rank),))
    if Pool().size > 1 and (nothing := _nothing(losses)) is not None:
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

"""What ``training_step`` returned: losses for us, a scalar and everything else for Lightning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lightning_jd.core import RowsOption
from lightning_jd.engines import Losses


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

"""What ``training_step`` returned: losses for us, a scalar and everything else for Lightning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lightning_jd.core import RowsOption
from lightning_jd.engines import Losses
from lightning_jd.errors import SetupError


def loss_in(output: Any) -> Any:
    """What ``training_step`` returned as the loss: a dict without "loss" is a dict of losses.

    Raises:
        SetupError: If a dict without "loss" has entries that are no losses.
    """
    if not isinstance(output, Mapping) or "loss" in output:
        return output["loss"] if isinstance(output, Mapping) else output
    for name, value in output.items():
        if value is not None and not _is_loss(value):
            raise SetupError(
                "A dict from `training_step` must have the key 'loss', or hold losses only, got "
                f"{name!r}, a {type(value).__name__} without a gradient. Return "
                f"{{'loss': {{'task': ...}}, {name!r}: ...}}."
            )
    return dict(output)


def _is_loss(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


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
    if not isinstance(output, Mapping):
        return value
    if "loss" not in output:  # losses, whose graph nobody else needs
        output = {name: loss.detach() for name, loss in output.items() if loss is not None}
    return {**output, "loss": value}

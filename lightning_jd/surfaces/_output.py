"""What ``training_step`` returned: losses for us, a scalar and everything else for Lightning."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from lightning_jd.core import RowsOption
from lightning_jd.engines import Losses, Objectives
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


class Batches:
    """Counts what ``training_step`` gave.

    Attributes:
        got: What the last batch had in the place of several losses.
    """

    def __init__(self) -> None:
        self.got = "no loss"
        self._trained = 0  # those that Lightning did not skip
        self._skipped = 0  # of this epoch, for which `training_step` returned None

    def add(self, *, is_skipped: bool) -> None:
        """Count a batch."""
        self._trained += not is_skipped
        self._skipped += is_skipped

    def check_first(self, steps: int) -> None:
        """Raise an error if the first batch had nothing to aggregate.

        Args:
            steps: Backward passes that were ours.

        Raises:
            SetupError: With what was found and what to return instead.
        """
        if self._trained == 1 and steps == 0:
            raise SetupError(
                "Jacobian descent requires several losses from `training_step` or "
                f"`manual_backward`, got {self.got} in the first batch. Return the vector, list "
                "or dict of losses (as the output or under the key 'loss'), or set split='auto' "
                "to split the scalar. With manual optimization, call `manual_backward(losses)` "
                "in place of `loss.backward()`. (If only this batch has a single loss, return "
                "{'loss': {'name': loss}}.)"
            )

    def check_epoch(self) -> None:
        """Raise an error if ``training_step`` returned None in all batches of an epoch.

        Raises:
            SetupError: With the number of batches.
        """
        skipped, self._skipped = self._skipped, 0
        if self._trained == 0 and skipped > 0:
            raise SetupError(
                f"`training_step` must return losses, got None in all {skipped} batches of the "
                "epoch. Lightning skips such batches, so nothing was trained."
            )

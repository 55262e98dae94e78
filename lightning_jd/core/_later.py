"""Numbers of a device that are looked at one step later, so that nobody waits for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from lightning_jd.errors import NonFiniteError

#: By the first parameter of a step: what is on its way. The next step of this parameter looks.
_under_way = WeakTensorKeyDictionary()


class _Flags:
    """Losses and squared lengths of gradients, copied to the host while the device goes on."""

    def __init__(self, numbers: Sequence[Tensor], names: Sequence[str], has_losses: bool) -> None:
        together = torch.cat([each.reshape(-1) for each in numbers])
        # Only such memory is copied to without the host.
        self._host = torch.empty(len(together), dtype=together.dtype, pin_memory=True)
        self._host.copy_(together, non_blocking=True)
        self._arrived: Any = torch.get_device_module(together.device).Event()
        self._arrived.record()
        self._names, self._has_losses = tuple(names), has_losses

    def look(self) -> None:
        """Raise if one is NaN or infinite."""
        if not self._arrived.query():  # as a rule it has arrived: a whole step has passed
            self._arrived.synchronize()
        m, numbers = len(self._names), self._host.tolist()
        if all(map(math.isfinite, numbers)):
            return
        rows = [numbers[k : k + m] for k in range(0, len(numbers), m)]
        what = "Gradients"
        if self._has_losses:
            losses, *rows = rows
            if not all(map(math.isfinite, losses)):
                what, rows = "Losses", [losses]
        by_name = zip(self._names, zip(*rows, strict=True), strict=True)
        bad = [name for name, each in by_name if not all(map(math.isfinite, each))]
        shown = ", ".join(map(repr, bad[:10])) + (", ..." if len(bad) > 10 else "")
        raise NonFiniteError(
            f"One step earlier: {what} must be finite, got NaN or infinity in those of {len(bad)} "
            f"of {m} objectives: {shown}. The parameters are no longer finite either. (The weights "
            "do not depend on the gradients here, so that the step did not wait for the device to "
            "look at them.) Lower the learning rate, or set nonfinite='skip'."
        )


def can_look_later(device: torch.device) -> bool:
    """Whether numbers of a device can travel while it works, and say when they are there."""
    return device.type not in ("cpu", "mps", "meta")


def look_later(
    parameter: Tensor, numbers: Sequence[Tensor], names: Sequence[str], has_losses: bool
) -> None:
    """Look at the numbers of the step before, and let those of this step travel.

    Args:
        parameter: What tells steps of one model from those of others.
        numbers: The losses, if they are known, and diagonals of Gramians, each of shape (m,).
        names: The names of the objectives.
        has_losses: Whether the losses are there.

    Raises:
        NonFiniteError: If a number of the step before was NaN or infinite.
    """
    if (flags := _under_way.pop(parameter, None)) is not None:
        flags.look()
    if numbers:
        _under_way[parameter] = _Flags(numbers, names, has_losses)


def look_back() -> None:
    """Look at everything that is on its way; the device is waited for.

    Raises:
        NonFiniteError: If a number was NaN or infinite.
    """
    while _under_way:
        _, flags = _under_way.popitem()
        flags.look()

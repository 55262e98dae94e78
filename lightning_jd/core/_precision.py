"""The numeric environment of a step: ours is full precision, whatever the forward pass had."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Leave autocast and half-precision defaults, in which ``manual_backward`` is called.

    Example:
        >>> with torch.autocast("cpu", dtype=torch.bfloat16), full_precision(torch.device("cpu")):
        ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
        torch.float32
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_default_dtype(default)


def loss_scale(scaler: Any, device: torch.device, terms: int) -> Tensor | None:
    """The factor for every loss if there is a GradScaler that is in use.

    In plain training the loss is a mean of ``terms`` losses, each of which gets the scale divided
    by their number. With the same factor, rows overflow where plain training does, and no sooner.
    """
    if scaler is None or not scaler.is_enabled():
        return None
    scale: Tensor = scaler.scale(torch.ones((), device=device))
    return scale / max(terms, 1)  # a process of several may have no loss

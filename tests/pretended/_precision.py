"""A device without float64, as Metal is one."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lightning_jd.linalg._float64 import WITHOUT_FLOAT64
from tests.pretended._device import NAME

_WIDE = (torch.float64, torch.complex128)


@contextmanager
def without_float64() -> Iterator[None]:
    """Inside of the block the device refuses to hold a number in float64, and is known for it."""
    WITHOUT_FLOAT64.add(NAME)
    try:
        yield
    finally:
        WITHOUT_FLOAT64.discard(NAME)


def refuse_float64(dtype: torch.dtype | None) -> None:
    """Raise what MPS raises where a tensor would be in float64, if only on its way to the host."""
    if dtype in _WIDE and NAME in WITHOUT_FLOAT64:
        raise TypeError(f"Cannot hold {dtype} on {NAME}, which has no such numbers.")

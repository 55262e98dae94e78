"""Arguments that several aggregators share, checked when they are given and when they are used."""

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from lightning_jd.errors import ArgumentError, ShapeError


def checked_preference(preference: Sequence[float] | None) -> tuple[float, ...] | None:
    """Return the preference as a tuple, or raise unless all entries are positive and finite."""
    if preference is None:
        return None
    numbers = tuple(float(number) for number in preference)
    if not numbers or not all(0 < number < math.inf for number in numbers):
        raise ArgumentError(
            f"`preference` must be positive numbers, one per objective, got {list(numbers)}. "
            "Leave an objective out of the losses to ignore it."
        )
    return numbers


def preference_for(preference: tuple[float, ...] | None, gramian: Tensor) -> Tensor:
    """The preference as a tensor ``(m,)``, 1/m each for ``None``."""
    m = gramian.shape[0]
    if preference is None:
        return _uniform(m, gramian.dtype, gramian.device)
    if len(preference) != m:
        raise ShapeError(
            f"`preference` must have one entry per objective ({m}), got {len(preference)}."
        )
    return gramian.new_tensor(preference)


@lru_cache(maxsize=64)
def _uniform(m: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Kept, because making it takes as long as a small program does; nobody may write to it."""
    return torch.full((m,), 1 / m, dtype=dtype, device=device)


def checked_reg(reg: float) -> float:
    """Return ``reg`` as a float, or raise unless it is finite and not negative."""
    if isinstance(reg, str):
        raise ArgumentError(f"`reg` must be a number, got the text {reg!r}. Usual: 0 to 1e-2.")
    if not 0 <= reg < math.inf:
        raise ArgumentError(
            f"`reg` must be at least 0 and finite, got {reg}. "
            "Usual values are 0 (the exact projection) to 1e-2."
        )
    return float(reg)


def checked_integer(name: str, value: int, least: int) -> int:
    """Return ``value``, or raise unless it is an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ArgumentError(f"`{name}` must be an integer of at least {least}, got {value!r}.")
    return value


def positive(name: str, value: float) -> float:
    """Return ``value`` as a float, or raise unless it is positive and finite."""
    if not 0 < value < math.inf:
        raise ArgumentError(f"`{name}` must be positive and finite, got {value}.")
    return float(value)


def not_negative(name: str, value: float) -> float:
    """Return ``value`` as a float, or raise unless it is at least 0 and finite."""
    if not 0 <= value < math.inf:
        raise ArgumentError(f"`{name}` must be at least 0 and finite, got {value}.")
    return float(value)


def share(name: str, value: float, *, below_one: bool = False) -> float:
    """Return ``value`` as a float, or raise unless it is from 0 to 1 (or less than 1)."""
    if not 0 <= value <= 1 or (below_one and value == 1):
        must = "at least 0 and less than 1" if below_one else "from 0 to 1"
        raise ArgumentError(f"`{name}` must be {must}, got {value}.")
    return float(value)

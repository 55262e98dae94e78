"""Arguments that several aggregators share, checked when they are given and when they are used."""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from lightning_jd.errors import ArgumentError, ShapeError

#: One number per objective, in their order or by name.
PerObjective = Sequence[float] | Mapping[str, float]
#: The same, checked.
Entries = tuple[float, ...] | dict[str, float]


def checked_entries(name: str, entries: PerObjective | None, least: float) -> Entries | None:
    """Return one number per objective, or raise unless all are finite and above ``least``."""
    if entries is None:
        return None
    try:
        numbers = [
            float(number)
            for number in (entries.values() if isinstance(entries, Mapping) else entries)
        ]
    except (TypeError, ValueError):
        numbers = []
    if not numbers or not all(least < number < math.inf for number in numbers):
        must = "positive" if least == 0 else "finite"
        raise ArgumentError(
            f"`{name}` must be {must} numbers, one per objective, got {_shown(entries)}. To ignore "
            "an objective, omit its loss."
        )
    if isinstance(entries, Mapping):
        return dict(zip(map(str, entries), numbers, strict=True))
    return tuple(numbers)


def entries_for(name: str, entries: Entries, names: Sequence[str] | None, like: Tensor) -> Tensor:
    """The numbers of the objectives of a step, as a tensor ``(m,)``.

    Args:
        name: What the user calls them.
        entries: In order, or by name.
        names: The objectives; ``None`` for their positions.
        like: A tensor with m rows, of the type to return.
    """
    m = len(like)
    if not isinstance(entries, dict):
        if len(entries) != m:
            raise ShapeError(
                f"`{name}` must have one entry per objective ({m}), got {len(entries)}. If the "
                "tasks change from step to step, pass a dict by task name."
            )
        return _like(like, entries)
    present = [str(i) for i in range(m)] if names is None else names
    if missing := [task for task in present if task not in entries]:
        raise ArgumentError(
            f"`{name}` must have an entry for every objective, got none for "
            f"{', '.join(map(repr, missing[:10]))}. Known: {', '.join(map(repr, entries))}."
        )
    return _like(like, [entries[task] for task in present])


def _like(like: Tensor, numbers: Sequence[float]) -> Tensor:
    """A tensor of the dtype and on the device of ``like``, for which the host does not wait."""
    return torch.tensor(numbers, dtype=like.dtype).to(like.device, non_blocking=True)


def checked_preference(preference: PerObjective | None) -> Entries | None:
    """Return the preference, or raise unless all entries are positive and finite."""
    return checked_entries("preference", preference, least=0.0)


def preference_for(
    preference: Entries | None, gramian: Tensor, names: Sequence[str] | None = None
) -> Tensor:
    """The preference as a tensor ``(m,)``, 1/m each for ``None``."""
    if preference is None:
        return _uniform(gramian.shape[0], gramian.dtype, gramian.device)
    return entries_for("preference", preference, names, gramian)


def _shown(entries: object) -> object:
    """Numbers as a list, whatever sequence they were in; anything else as it is."""
    return (
        list(entries) if isinstance(entries, Sequence) and not isinstance(entries, str) else entries
    )


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

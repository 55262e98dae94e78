"""The options that a plain loop, Fabric and the Trainer have in common."""

from __future__ import annotations

from typing import Literal, get_args

from lightning_jd.errors import ArgumentError

RowsOption = Literal["tasks", "instances", "ranks"]
Nonfinite = Literal["raise", "skip"]
MemoryOption = Literal["fast", "low"]
Accumulation = Literal["batch", "step"]
BatchNormOption = Literal["exact", "frozen"]

_CHOICES: dict[str, tuple[object, ...]] = {
    "rows": (None, *get_args(RowsOption)),
    "nonfinite": get_args(Nonfinite),
    "memory": get_args(MemoryOption),
    "accumulation": get_args(Accumulation),
    "batch_norm": get_args(BatchNormOption),
}


def check_options(**options: object) -> None:
    """Raise unless every option has one of its values.

    Raises:
        ArgumentError: With the values that there are.

    Example:
        >>> check_options(rows="tasks", memory="low")
    """
    for name, value in options.items():
        if value not in _CHOICES[name]:
            listed = ", ".join(map(repr, _CHOICES[name]))
            raise ArgumentError(f"`{name}` must be one of {listed}, got {value!r}.")

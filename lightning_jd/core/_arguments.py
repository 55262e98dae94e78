"""The arguments that a plain loop, Fabric and the Trainer have in common."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar, get_args

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


P = ParamSpec("P")
T = TypeVar("T")


def old_names(*, model: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Accept ``select=...`` for ``params``, and ``params=...`` for the model.

    Args:
        model: The position of the model among the arguments.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> T:
            if "params" in kwargs and len(args) <= model and "model" not in kwargs:
                kwargs["model"] = _moved(kwargs.pop("params"), "params", "model")
            if "select" in kwargs:
                kwargs["params"] = _moved(kwargs.pop("select"), "select", "params")
            return function(*args, **kwargs)

        return call

    return decorate


def _moved(value: Any, old: str, new: str) -> Any:
    warnings.warn(
        f"The argument `{old}` of `backward` is called `{new}` since 0.3; `{old}` in this meaning "
        "is removed in 0.4.",
        FutureWarning,
        stacklevel=4,
    )
    return value

"""The names of arguments in 0.2, which warn until 0.4."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

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

"""Methods of one object, replaced for a while."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

_ABSENT = object()


class Patch:
    """Puts a function in front of methods of one instance until :meth:`undo`.

    Only the instance is touched, never its class, so that other trainers in the same process do
    not notice. Undoing twice does nothing.

    Args:
        target: The instance.
        wrappers: Name of a method to the function that takes its place. The function is called
            with the original method and then the arguments.

    Example:
        >>> class Bell:
        ...     def ring(self, times):
        ...         return "ding " * times
        >>> bell = Bell()
        >>> patch = Patch(bell, {"ring": lambda original, times: original(times).upper()})
        >>> bell.ring(2)
        'DING DING '
        >>> patch.undo()
        >>> bell.ring(2), vars(bell)
        ('ding ding ', {})
    """

    def __init__(self, target: object, wrappers: dict[str, Callable[..., Any]]) -> None:
        self._target = target
        self._before: dict[str, Any] = {}
        for name, wrapper in wrappers.items():
            # Somebody else may have put something on the instance before us: it comes back.
            self._before[name] = vars(target).get(name, _ABSENT)
            setattr(target, name, partial(wrapper, getattr(target, name)))

    def undo(self) -> None:
        """Give the instance its methods back."""
        for name, value in self._before.items():
            if value is _ABSENT:
                delattr(self._target, name)
            else:
                setattr(self._target, name, value)
        self._before.clear()

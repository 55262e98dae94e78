"""What makes a host wait for a device, with the line of the package that asked for it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from typing_extensions import override

_PACKAGE = "/lightning_jd/"
_DEVICE = "/tests/pretended/"


@dataclass(frozen=True)
class Synchronisation:
    """One wait.

    Attributes:
        kind: What was asked: ``"item"``, ``"to host"``, ``"nonzero"``...
        line: The innermost line of the package at that moment, ``"core/_routes.py:208"``, or of
            whoever else asked.
    """

    kind: str
    line: str

    @override
    def __str__(self) -> str:
        return f"{self.kind} at {self.line}"


_listeners: list[list[Synchronisation]] = []


@contextmanager
def synchronisations() -> Iterator[list[Synchronisation]]:
    """Record all waits of this process; the list fills while the block runs."""
    found: list[Synchronisation] = []
    _listeners.append(found)
    try:
        yield found
    finally:
        # By identity: two lists of equal waits are equal.
        _listeners[:] = [each for each in _listeners if each is not found]


@contextmanager
def no_synchronisation() -> Iterator[None]:
    """Fail if the block waits."""
    with synchronisations() as found:
        yield
    assert not found, "; ".join(map(str, found))


def record(kind: str) -> None:
    """Tell all who listen that the host waits."""
    if _listeners:
        found = Synchronisation(kind, _line())
        for listener in _listeners:
            listener.append(found)


def _line() -> str:
    frame: FrameType | None = sys._getframe(2)
    other = ""
    while frame is not None:
        name = frame.f_code.co_filename
        if _PACKAGE in name:
            return f"{name.split(_PACKAGE)[-1]}:{frame.f_lineno}"
        if _DEVICE not in name and "/torch/" not in name and not other:
            other = f"{name.rsplit('/', 1)[-1]}:{frame.f_lineno}"
        frame = frame.f_back
    return other or "torch"

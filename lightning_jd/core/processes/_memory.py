"""What processes remember of one another, so that they need not say it again."""

from __future__ import annotations

import pickle
from collections.abc import Hashable, Mapping
from hashlib import blake2b
from typing import Any


class Memory:
    """What all processes have told one another, by digest, and what they have noted together.

    All processes add and forget the same, or notice by the state that they did not: one of them may
    have been started anew.
    """

    LIMIT = 1000  # steps whose batches all have other sizes must not fill the memory

    def __init__(self) -> None:
        self.values: dict[int, Any] = {}
        self.notes: dict[Hashable, Any] = {}
        self.state = 0
        self._digests: dict[Hashable, int] = {}

    def digest(self, value: Hashable) -> int:
        """The digest of a value, from memory if it is there: this process alone knows."""
        found = self._digests.get(value)
        if found is None:
            if len(self._digests) > self.LIMIT:
                self._digests.clear()
            found = self._digests[value] = _digest(pickle.dumps(value))
        return found

    def add(self, values: Mapping[int, Any]) -> None:
        """Remember values by their digests."""
        self._make_room()
        self.values |= values
        self._advance(tuple(values))

    def note(self, key: Hashable, value: Any) -> None:
        """Remember a value by a key that all processes have."""
        self._make_room()
        self.notes[key] = value
        self._advance((key, value))

    def forget(self) -> None:
        """Begin anew."""
        self.values.clear()
        self.notes.clear()
        self.state = 0

    def _make_room(self) -> None:
        if len(self.values) + len(self.notes) > self.LIMIT:
            self.forget()

    def _advance(self, what: Any) -> None:
        # Not pickled: equal objects may be pickled in several ways, depending on where they are.
        self.state = _digest(repr((self.state, what)).encode())


#: That of this process.
memory = Memory()


def _digest(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little", signed=True)

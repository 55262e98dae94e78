"""One store of runs: what is finished survives a kill, and is not done again."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from lightning_jd.errors import ArgumentError

Key = TypeVar("Key")
Found = TypeVar("Found")


class Store(Generic[Key, Found]):
    """What is finished, in memory and in a file of JSON, one line for each entry.

    Args:
        path: The file, created with its folder at the first entry.
        write: Key and what was found for it to the entry of the file.
        read: The way back.

    Raises:
        ArgumentError: If the file exists and holds something else.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "areas.jsonl"
        >>> store = Store(path, write=lambda *pair: list(pair), read=tuple)
        >>> store.add("small", 0.5)
        >>> Store(path, write=lambda *pair: list(pair), read=tuple)["small"]
        0.5
    """

    def __init__(
        self,
        path: Path,
        write: Callable[[Key, Found], Any],
        read: Callable[[Any], tuple[Key, Found]],
    ) -> None:
        self._path, self._write, self._read = path, write, read
        lines = enumerate(self._lines(), start=1)
        self._known = dict(self._entry(number, line) for number, line in lines)

    def __contains__(self, key: Key) -> bool:
        return key in self._known

    def __getitem__(self, key: Key) -> Found:
        return self._known[key]

    def __len__(self) -> int:
        return len(self._known)

    def items(self) -> Iterator[tuple[Key, Found]]:
        """All that is known."""
        yield from self._known.items()

    def add(self, key: Key, found: Found) -> None:
        """Keep what was found, in memory and on disk."""
        self._known[key] = found
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self._write(key, found)) + "\n")

    def _entry(self, number: int, line: str) -> tuple[Key, Found]:
        try:
            key, found = self._read(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArgumentError(
                f"`output` must hold the runs of this command, but line {number} of "
                f"{self._path} is not one ({error!r}). Choose another folder."
            ) from error
        return key, found

    def _lines(self) -> list[str]:
        if not self._path.exists():
            return []
        complete, newline, torn = self._path.read_text(encoding="utf-8").rpartition("\n")
        if torn:  # a last line that was not written to its end: or the next entry would join it
            self._path.write_text(complete + newline, encoding="utf-8")
        return complete.splitlines()

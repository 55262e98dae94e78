"""A file of JSON, one entry per line, written at once: what is finished survives a kill."""

import json
from pathlib import Path
from typing import Any

from lightning_jd.errors import ArgumentError


class Lines:
    """The entries of a file.

    Args:
        path: The file, created with its folder at the first entry.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[Any]:
        """All entries; a last line that was not written to its end is dropped.

        Raises:
            ArgumentError: If a line is no JSON.
        """
        if not self.path.exists():
            return []
        complete, newline, torn = self.path.read_text(encoding="utf-8").rpartition("\n")
        if torn:  # dropped from the file too, or the next entry would join it
            self.path.write_text(complete + newline, encoding="utf-8")
        lines = complete.splitlines()
        return [self._entry(line, number) for number, line in enumerate(lines, start=1)]

    def append(self, entry: Any) -> None:
        """Add an entry."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def foreign(self, number: int, error: Exception) -> ArgumentError:
        """The error for a line that this command has not written."""
        return ArgumentError(
            f"`output` must hold the runs of this command, but line {number} of "
            f"{self.path} is not one ({error!r}). Choose another folder."
        )

    def _entry(self, line: str, number: int) -> Any:
        try:
            return json.loads(line)
        except ValueError as error:
            raise self.foreign(number, error) from error

"""Finished runs on disk: one line of JSON each, written at once, so that Ctrl-C loses nothing."""

import json
from dataclasses import asdict
from pathlib import Path

from lightning_jd.errors import ArgumentError
from lightning_jd.experiments._run import Outcome, Run


class Store:
    """The finished runs of a folder.

    Args:
        path: The file, created with its folder at the first run.

    Raises:
        ArgumentError: If the file exists and is no file of runs.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._finished: dict[Run, Outcome] = {}
        if path.exists():
            self._read()

    def __contains__(self, run: Run) -> bool:
        return run in self._finished

    def __getitem__(self, run: Run) -> Outcome:
        return self._finished[run]

    def __len__(self) -> int:
        return len(self._finished)

    def add(self, run: Run, outcome: Outcome) -> None:
        """Keep a finished run, in memory and on disk."""
        self._finished[run] = outcome
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"run": asdict(run), "outcome": asdict(outcome)}) + "\n")

    def _read(self) -> None:
        text = self._path.read_text(encoding="utf-8")
        complete, newline, torn = text.rpartition("\n")
        if torn:  # the process ended in the middle of a line: drop it, or the next one joins it
            self._path.write_text(complete + newline, encoding="utf-8")
        for number, line in enumerate(complete.splitlines(), start=1):
            run, outcome = self._parsed(line, number)
            self._finished[run] = outcome

    def _parsed(self, line: str, number: int) -> tuple[Run, Outcome]:
        try:
            entry = json.loads(line)
            return Run(**entry["run"]), Outcome(**entry["outcome"])
        except (ValueError, KeyError, TypeError) as error:
            raise ArgumentError(
                f"`output` must hold the runs of this command, but line {number} of "
                f"{self._path} is not one ({error!r}). Choose another folder."
            ) from error

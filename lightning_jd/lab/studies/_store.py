"""Finished runs on disk."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from lightning_jd.lab.store import Lines
from lightning_jd.lab.studies._run import Outcome, Run


class Store:
    """The finished runs of a folder.

    Args:
        path: The file, created with its folder at the first run.

    Raises:
        ArgumentError: If the file exists and is no file of runs.
    """

    def __init__(self, path: Path) -> None:
        self._lines = Lines(path)
        entries = enumerate(self._lines.read(), start=1)
        self._finished = dict(self._parsed(entry, number) for number, entry in entries)

    def __contains__(self, run: Run) -> bool:
        return run in self._finished

    def __getitem__(self, run: Run) -> Outcome:
        return self._finished[run]

    def __len__(self) -> int:
        return len(self._finished)

    def steps(self, aggregator: str, reg: float | None) -> int:
        """How many training steps all runs with an aggregator have taken together."""
        return sum(
            len(outcome.losses)
            for run, outcome in self._finished.items()
            if (run.aggregator, run.reg) == (aggregator, reg)
        )

    def add(self, run: Run, outcome: Outcome) -> None:
        """Keep a finished run, in memory and on disk."""
        self._finished[run] = outcome
        self._lines.append({"run": asdict(run), "outcome": asdict(outcome)})

    def _parsed(self, entry: Any, number: int) -> tuple[Run, Outcome]:
        try:
            return Run(**entry["run"]), Outcome(**entry["outcome"])
        except (KeyError, TypeError) as error:
            raise self._lines.foreign(number, error) from error

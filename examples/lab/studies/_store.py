"""The store of training runs with one objective per image."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from examples.lab.store import Store
from examples.lab.studies._run import Outcome, Run

Runs = Store[Run, Outcome]


def stored_runs(path: Path) -> Runs:
    """The finished runs of a file.

    Raises:
        ArgumentError: If the file exists and is no file of runs.
    """
    return Store(path, _written, _read)


def _written(run: Run, outcome: Outcome) -> Any:
    return {"run": asdict(run), "outcome": asdict(outcome)}


def _read(entry: Any) -> tuple[Run, Outcome]:
    return Run(**entry["run"]), Outcome(**entry["outcome"])

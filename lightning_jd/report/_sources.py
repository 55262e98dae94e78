"""Where a folder keeps its run: JDReport's own file, or what a logger has written."""

from __future__ import annotations

import csv
from importlib import import_module
from pathlib import Path

from lightning_jd.errors import ArgumentError
from lightning_jd.report._run import Run

RUN_FILE = "jd_run.json"
_PREFIX = "jd/"


def read_run(run_dir: Path) -> Run:
    """Read the newest run in a folder or its subfolders.

    It prefers the file of JDReport; otherwise it reads the curves that
    ``JacobianDescent(log=True)`` has logged to CSV or TensorBoard files.

    Raises:
        ArgumentError: If the folder does not exist or contains no run.
    """
    if not run_dir.is_dir():
        raise ArgumentError(f"`run_dir` must be an existing folder, got {str(run_dir)!r}.")
    if (file := _newest(run_dir, RUN_FILE)) is not None:
        return Run.read(file)
    for pattern, read in (("metrics.csv", _from_csv), ("events.out.tfevents.*", _from_events)):
        if (file := _newest(run_dir, pattern)) is not None and (run := read(file)).tracks:
            return run
    raise ArgumentError(
        f"`run_dir` must hold a run with Jacobian descent, got {str(run_dir)!r}, where nothing "
        f"called {RUN_FILE} and no logged value called 'jd/...' was found. Add JDReport() to the "
        "callbacks, or log with JacobianDescent(log=True)."
    )


def _newest(folder: Path, pattern: str) -> Path | None:
    files = sorted(folder.rglob(pattern), key=lambda file: (file.stat().st_mtime, file))
    return files[-1] if files else None


def _from_csv(file: Path) -> Run:
    run = Run()
    with file.open(encoding="utf-8", newline="") as lines:
        for number, row in enumerate(csv.DictReader(lines)):
            step = int(_number(file, "step", row.get("step") or str(number)))
            values = {
                name.removeprefix(_PREFIX): _number(file, name, value)
                for name, value in row.items()
                if (name or "").startswith(_PREFIX) and value
            }
            run.add(step, values)
    return run


def _number(file: Path, column: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ArgumentError(
            f"Every value of {column!r} in {str(file)!r} must be a number, got {text!r}. Has "
            "something else written to the file?"
        ) from error


def _from_events(file: Path) -> Run:
    try:
        reader = import_module("tensorboard.backend.event_processing.event_accumulator")
    except ImportError:
        return Run()
    events = reader.EventAccumulator(
        str(file.parent), size_guidance={"scalars": 0}
    )  # 0: all of them
    events.Reload()
    run = Run()
    for tag in events.Tags()["scalars"]:
        if tag.startswith(_PREFIX):
            for event in events.Scalars(tag):
                run.add(event.step, {tag.removeprefix(_PREFIX): event.value})
    return run

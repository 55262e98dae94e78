"""``bench all``: all tables of one device, in one file that can be sent in."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from shutil import make_archive
from typing import Any

from examples.lab.apart import apart
from examples.lab.bench.ddp import ddp
from examples.lab.bench.engines import engines
from examples.lab.bench.fit import fit
from examples.lab.bench.gallery import gallery
from examples.lab.bench.launches import launches
from examples.lab.bench.methods import methods
from examples.lab.bench.metrics import metrics
from examples.lab.bench.optimizers import optimizers
from examples.lab.bench.scale import scale
from examples.lab.bench.weights import weights
from examples.lab.console import console
from examples.lab.environment import environment_of
from examples.lab.folders import writable_folder
from examples.lab.report import Report, Value
from examples.lab.store import Store
from lightning_jd.errors import JDError, UnknownNameError

#: Those that take minutes first, so that the first hour has most of the tables.
BENCHES: dict[str, Callable[..., None]] = {
    "engines": engines,
    "launches": launches,
    "methods": methods,
    "metrics": metrics,
    "weights": weights,
    "fit": fit,
    "optimizers": optimizers,
    "gallery": gallery,
    "scale": scale,
    "ddp": ddp,
}
_COLUMNS = {"bench": "bench", "state": "state", "seconds": "seconds", "error": "error"}
_NOTE = "One line for each benchmark; the tables are in the files of the same names."


def bench_all(
    device: str = "cuda",
    repeats: int | None = None,
    threads: int | None = None,
    only: Sequence[str] | None = None,
    output: Path = Path("results"),
) -> None:
    """Run the benchmarks of a step on a device, and put their tables into one zip.

    Each benchmark runs in a process of its own. One that fails is noted with its error, and the
    others go on. Every table has the name of the device and all versions below it. A benchmark that
    is finished is not repeated: stop with Ctrl-C and start again at will.

    Args:
        device: Where models and data are: "cuda", "cuda:1", "mps", "cpu", ...
        repeats: Timed rounds; by default as many as each benchmark does by itself. With 1 the
            numbers are worth little, but everything has run.
        threads: Threads of torch; by default as many as each benchmark takes by itself.
        only: Some of the benchmarks, e.g. --only '[engines, fit]'; all by default.
        output: The folder that the tables and the zip are written to.
    """
    for name in only or ():
        if name not in BENCHES:
            raise UnknownNameError.of("only", name, BENCHES)
    # Apart, because a process that has used an accelerator keeps memory there.
    surroundings = apart(environment_of, device=device)
    folder = writable_folder(output / device.replace(":", "-"))
    finished: Store[str, float] = Store(
        folder / "finished.jsonl", lambda key, seconds: [key, seconds], tuple
    )
    rows: list[dict[str, Value]] = []
    names = list(only or BENCHES)
    for number, name in enumerate(names, start=1):
        options = {"device": device, "clock": "wall", "repeats": repeats, "threads": threads}
        taken = signature(BENCHES[name]).parameters
        options = {k: v for k, v in options.items() if k in taken and v is not None}
        key = json.dumps([name, options, surroundings])
        is_finished = key in finished and (folder / f"{name}.json").exists()
        _say(f"{number} of {len(names)}: {name}{', which is finished' if is_finished else ''}")
        if not is_finished:
            begin = time.perf_counter()
            error = _attempt(name, folder, options)
            if error is not None:
                rows.append({"bench": name, "state": "failed", "error": _brief(error)})
                continue
            finished.add(key, round(time.perf_counter() - begin, 1))
        rows.append({"bench": name, "state": "measured", "seconds": finished[key]})
    title = f"All benchmarks on {surroundings['device']}"
    report = Report("bundle", title, _COLUMNS, rows, (_NOTE,), surroundings)
    report.publish(folder)
    bundle = make_archive(str(folder), "zip", folder)
    console().print(f"Wrote {bundle}. Send it in with an issue.", markup=False, soft_wrap=True)


def _attempt(name: str, folder: Path, options: Mapping[str, Any]) -> str | None:
    """Run a benchmark; the error, if it fails, which is also written to a file."""
    note = folder / f"{name}_failed.txt"
    for stale in (note, folder / f"{name}.json", folder / f"{name}.md"):
        stale.unlink(missing_ok=True)  # of another start, with other settings
    try:
        apart(BENCHES[name], **options, output=folder)
    except JDError as error:
        note.write_text(str(error), encoding="utf-8")
        _say(f"{name} failed: {_brief(str(error))}")
        return str(error)
    return None


def _brief(error: str) -> str:
    """The last line of a traceback."""
    return error.strip().rpartition("\n")[2]


def _say(line: str) -> None:
    console(stderr=True).print(line, markup=False, soft_wrap=True)

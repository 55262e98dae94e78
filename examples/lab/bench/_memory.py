"""Peak memory of a training step above the memory of its model, each in a fresh process.

The peak is what the operating system saw (``VmHWM``), so that the scratch space of the kernels
counts too, not only tensors. It is made repeatable in three ways: the process is told to give
freed blocks above 64 KB back at once (otherwise the allocator keeps what an earlier step freed,
and hides what the next one needs); steps on a few instances run before the baseline is read, so
that the code that an engine loads is in it; and the peak is reset when the baseline is read.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from examples.lab.bench._cases import CASES, SCALE
from examples.lab.work.steps import OPPONENTS, Step, make_step
from lightning_jd.aggregators import resolve
from lightning_jd.errors import SetupError

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")
_ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "0",
    "MALLOC_TOP_PAD_": "0",
    "MALLOC_ARENA_MAX": "1",
}
_FIRST_STEPS = 3  # checks itself, records itself, compares what it recorded
_LATER_STEPS = 3
_FEW = 8  # instances that load all code, also that of the solver for few objectives


class Peak(NamedTuple):
    """Megabytes on top of model, batch and libraries.

    Attributes:
        first: Of the first three steps, in which an engine may check itself, try variants, and
            record what it does.
        later: Of what a training run consists of.
    """

    first: float
    later: float


def peak_memory(case: str, engine: str, threads: int) -> Peak | None:
    """Measure the steps of an engine in a fresh process.

    Gradients, activations and everything that the engine keeps between steps are counted.

    Args:
        case: A name of :data:`CASES` or :data:`SCALE`.
        engine: A name of :data:`ENGINES`.
        threads: Number of threads.

    Returns:
        The peaks, or ``None`` if the engine is TorchJD's and is not installed or fails here.

    Raises:
        SetupError: If the operating system does not tell, or another engine fails.
    """
    if not _STATUS.exists():
        raise SetupError("`--memory` must read /proc/self/status, which only Linux has.")
    try:
        words = [case, engine, str(threads)]
        measured = answer_of("examples.lab.bench._memory", words, _ALLOCATOR)
    except SetupError:
        if engine in OPPONENTS:
            return None
        raise
    return None if measured is None else Peak(*measured)


def answer_of(module: str, words: list[str], settings: Mapping[str, str] | None = None) -> Any:
    """Run a module in a fresh process, and read the JSON that it prints at its end.

    Args:
        module: What to run.
        words: Its arguments.
        settings: More variables of the environment.

    Raises:
        SetupError: If the process fails.
    """
    run = subprocess.run(
        [sys.executable, "-m", module, *words],
        env={**os.environ, **(settings or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode != 0:
        raise SetupError(
            f"The measurement of {' '.join(words)} must run in a process of its own, but that "
            f"ended with: {run.stderr.strip().splitlines()[-1:]}"
        )
    return json.loads(run.stdout.splitlines()[-1])


def measure_here(case: str, engine: str) -> Peak | None:
    """The measurement itself, in this process."""
    torch.manual_seed(0)
    chosen = (CASES | SCALE)[case]
    work = chosen.build()
    n = min(_FEW, len(work.x) // 4)
    few = make_step(engine, replace(work, x=work.x[:n], y=work.y[:n]), chosen.aggregator)
    if few is None:
        return None
    for _ in range(2):
        few()
    if engine.startswith(
        "ours"
    ):  # few losses may not conflict, and then nothing imports the solver
        resolve(chosen.aggregator)(torch.tensor([[1.0, 0.0], [-1.0, 1.0], [0.5, -1.0]]))
    del few, work
    gc.collect()
    work = chosen.build()
    step = make_step(engine, work, chosen.aggregator)
    assert step is not None
    gc.collect()
    _release_free_memory()
    before = _kilobytes("VmRSS")
    first = _highest(step, _FIRST_STEPS) - before
    return Peak(first / 1024, (_highest(step, _LATER_STEPS) - before) / 1024)


def _highest(step: Step, times: int) -> int:
    _RESET.write_text("5")  # sets the peak to what is in use now
    for _ in range(times):
        step()
    return _kilobytes("VmHWM")


def _release_free_memory() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl does not
    if trim is not None:
        trim(0)


def _kilobytes(field: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise SetupError(f"/proc/self/status must have a line {field!r}, got none.")


if __name__ == "__main__":
    _case, _engine, _threads = sys.argv[1:]
    torch.set_num_threads(int(_threads))
    print(json.dumps(measure_here(_case, _engine)))

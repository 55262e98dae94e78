"""``bench scale``: a model so large that what a step keeps decides."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from examples.lab.bench._cases import SCALE
from examples.lab.bench._memory import answer_of, peak_memory
from examples.lab.clock import CLOCKS, Clock, check_clock, interleaved, ratio
from examples.lab.console import progress_bar
from examples.lab.device import here, measured_on, wait_for_device
from examples.lab.folders import writable_folder
from examples.lab.report import Report, Value
from examples.lab.threads import threads_of_torch
from examples.lab.work.steps import make_step
from lightning_jd.errors import ArgumentError, UnknownNameError

_FIRST_MUST = 2.0
_MEMORY_MUST = 1.25
_COLUMNS = {
    "case": "work",
    "m": "objectives",
    "parameters": "million parameters",
    "plain_ms": "plain ms",
    "ours": "ours / plain",
    "must": "must",
    "first": "first step / plain",
    "first_must": "must",
    "plain_mb": "plain MB above the model",
    "ours_memory": "memory: ours / plain",
    "memory_must": "must",
    "ours_first_memory": "memory: first steps / plain",
    "mark": "reached",
}


def scale(
    cases: Sequence[str] = tuple(SCALE),
    threads: int = 2,
    clock: Clock = "wall",
    repeats: int = 3,
    memory: bool = True,
    device: str = "cpu",
    output: Path = Path("results"),
) -> None:
    """Time a step of a language model of the size of GPT-2 small, and measure its memory.

    124 million parameters, 12 layers of 768, a vocabulary of 50,257, the embedding tied to the
    last layer; 8 sequences of 128 tokens, one objective per sequence, random weights and tokens.
    Time and memory are taken in processes of their own. The first step also checks itself and tries
    variants. Needs about 8 GB and some minutes.

    Args:
        cases: The models, by name.
        threads: Threads of torch.
        clock: "wall", or "cpu" for the processor time of all threads, which other programs disturb
            less.
        repeats: Timed rounds after the first step.
        memory: Whether to measure the peak memory above the model too (Linux).
        device: Where model and data are: "cpu", "cuda", ...; memory is measured on a CPU only.
        output: The folder for scale.json and scale.md.
    """
    for name in cases:
        if name not in SCALE:
            raise UnknownNameError.of("cases", name, SCALE)
    if repeats < 1:
        raise ArgumentError(f"`repeats` must be at least 1, got {repeats}.")
    writable_folder(output)
    with threads_of_torch(threads), measured_on(device):
        check_clock(clock)
        memory = memory and here().type == "cpu"
        with progress_bar(total=len(cases) * (2 if memory else 1)) as start:
            rows: list[dict[str, Value]] = []
            for name in cases:
                start(f"{name}, time")
                words = [name, str(threads), clock, str(repeats), device]
                row: dict[str, Value] = {"case": name, "must": SCALE[name].must}
                row |= answer_of("examples.lab.bench.scale", words)
                if memory:
                    start(f"{name}, memory")
                    row |= remembered(name, threads)
                rows.append(row | {"first_must": _FIRST_MUST, "mark": _mark(row)})
        notes = (
            f"Aggregator UPGrad; {clock} time, {threads} threads, medians of {repeats} rounds; the "
            "first step is a single one. Memory is that of gradients, activations and what an "
            "engine keeps, without the model.",
        )
        report = Report("scale", "Jacobian descent at scale", _COLUMNS, rows, notes)
    report.publish(output)


def _mark(row: dict[str, Value]) -> str:
    limits = {"ours": row["must"], "first": _FIRST_MUST, "ours_memory": _MEMORY_MUST}
    missed = [key for key, must in limits.items() if float(row.get(key) or 0) > float(must or 0)]
    return "missed" if missed else "yes"


def remembered(case: str, threads: int) -> dict[str, Value]:
    """The columns of the memory."""
    plain, ours = (peak_memory(case, engine, threads) for engine in ("plain", "ours"))
    assert plain is not None
    assert ours is not None
    return {
        "plain_mb": plain.later,
        "ours_memory": ours.later / plain.later,
        "ours_first_memory": ours.first / plain.later,
        "memory_must": _MEMORY_MUST,
    }


def timed_here(case: str, clock: Clock, repeats: int) -> dict[str, Any]:
    """The columns of the time, measured in this process."""
    torch.manual_seed(0)
    chosen = SCALE[case]
    work = chosen.build().to(here())
    # One model for both: neither leaves anything behind in it.
    plain, ours = (make_step(engine, work, chosen.aggregator) for engine in ("plain", "ours"))
    assert plain is not None
    assert ours is not None
    plain()
    wait_for_device()
    begin = CLOCKS[clock]()
    ours()
    wait_for_device()
    first = CLOCKS[clock]() - begin
    found = interleaved({"plain": plain, "ours": ours}, repeats=repeats, warmup=1, clock=clock)
    return {
        "m": len(work.x),
        "parameters": sum(p.numel() for p in work.model.parameters()) / 1e6,
        "plain_ms": 1e3 * found["plain"].median,
        "ours": ratio(found["ours"], found["plain"]),
        "first": first / found["plain"].median,
    }


if __name__ == "__main__":
    _case, _threads, _clock, _repeats, _device = sys.argv[1:]
    torch.set_num_threads(int(_threads))
    with measured_on(_device):
        print(json.dumps(timed_here(_case, "cpu" if _clock == "cpu" else "wall", int(_repeats))))

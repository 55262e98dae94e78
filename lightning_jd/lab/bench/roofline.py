"""``lightning-jd bench roofline``: what a step would take on accelerators that are not here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lightning_jd._folders import writable_folder
from lightning_jd.errors import ArgumentError, UnknownNameError
from lightning_jd.lab.bench._gpus import GPUS
from lightning_jd.lab.bench._kernels import kernels_of
from lightning_jd.lab.bench._recorded import WORKS, Recorder, recorder
from lightning_jd.lab.bench._roofline_model import (
    KIND,
    PAPER,
    STEPS,
    Costs,
    Recorded,
    calibrated,
    paper_row_of,
    row_of,
)
from lightning_jd.lab.bench._roofline_page import publish
from lightning_jd.lab.bench.launches import CASES as TINY
from lightning_jd.lab.clock import interleaved
from lightning_jd.lab.console import progress_bar
from lightning_jd.lab.figure import check_matplotlib
from lightning_jd.lab.report import Value
from lightning_jd.lab.threads import threads_of_torch
from lightning_jd.lab.work.steps import working_step

#: Network to the batches that are looked at.
BATCHES = {
    **dict.fromkeys(PAPER, (32, 128)),
    "mlp": (64, 256),
    "resnet18": (8, 32),
    "transformer": (4, 16),
}
#: Minutes for one step of TorchJD on a CPU.
_SLOW = {("resnet18", 32), ("transformer", 16), ("mlp", 256), ("eurosat", 128)}


def roofline(
    networks: Sequence[str] = tuple(WORKS),
    torchjd: bool = True,
    repeats: int = 50,
    output: Path = Path("results"),
) -> None:
    """Compute, not measure, what a step would take on a T4, an L4, an A100 and an H100.

    A real step runs on a pretended device, which tells all operations that it is asked for, with
    their floating-point operations and bytes, and where the host waits. A queue is then computed: a
    host that asks for one operation after the other, and a device that takes for each what its peak
    numbers allow. How long the host takes to ask is measured here, with tensors so small that work
    is free. What share of its peak a device reaches is taken from the table of the paper, which was
    measured on an L4.

    Args:
        networks: E.g. --networks '[mnist, resnet18]'; all by default.
        torchjd: Whether TorchJD takes part; without it there is nothing to compare with the paper.
        repeats: Timed rounds for the host.
        output: The folder for roofline.json, roofline.md, roofline_paper.json, roofline_paper.md
            and roofline.png.
    """
    for name in networks:
        if name not in WORKS:
            raise UnknownNameError.of("networks", name, WORKS)
    if repeats < 1 or not networks:
        raise ArgumentError(
            f"`repeats` and `networks` must not be zero or empty, got {repeats} and "
            f"{list(networks)}."
        )
    check_matplotlib("`bench roofline`")
    writable_folder(output)
    kinds = sorted({KIND[name] for name in networks})
    total = len(kinds) + sum(len(BATCHES[name]) for name in networks) + len(PAPER)
    with progress_bar(total=total) as start, threads_of_torch(1), recorder() as record:
        per_operation: dict[tuple[str, str], float] = {}
        for kind in kinds:
            start(f"host, {kind}")
            per_operation |= {(kind, name): s for name, s in host_costs(kind, repeats, torchjd)}
        costs = Costs(per_operation)
        measured = {}
        if torchjd:
            for name in [each for each in PAPER if each in networks]:
                start(f"paper, {name}")
                measured[name] = _of_paper(record, name)
        share = calibrated(measured, costs)
        rows: list[dict[str, Value]] = []
        for name in networks:
            for batch in BATCHES[name]:
                start(f"{name}, batch {batch}")
                recorded = _recorded(record, name, batch, torchjd)
                rows += [row_of(gpu, name, batch, recorded, costs, share) for gpu in GPUS]
    paper = [paper_row_of(name, steps, costs, share) for name, steps in measured.items()]
    publish(rows, paper, share, costs, output)


def host_costs(kind: str, repeats: int, torchjd: bool) -> list[tuple[str, float]]:
    """Seconds that a host needs to ask for one operation, for each engine."""
    engines = ("plain", "ours", "autogram") if torchjd else ("plain", "ours")
    steps = {name: working_step(name, TINY[kind].tiny, "mean") for name in engines}
    there = {name: step for name, step in steps.items() if step is not None}
    timings = interleaved(there, repeats=repeats, warmup=10, clock="cpu")
    return [(name, timings[name].median / kernels_of(step)) for name, step in there.items()]


def _of_paper(record: Recorder, network: str) -> Recorded:
    """The steps that the paper's table was made of, and ours, at its batch of 32."""
    asked = {
        "plain": ("plain", "mean"),
        "autojac_mean": ("autojac", "mean"),
        "autojac_upgrad": ("autojac", "upgrad"),
        "mean": ("ours", "mean"),
        "upgrad": ("ours", "upgrad"),
    }
    return _all(record, network, 32, asked)


def _recorded(record: Recorder, network: str, batch: int, torchjd: bool) -> Recorded:
    skips = not torchjd or (network, batch) in _SLOW
    asked = {name: step for name, step in STEPS.items() if not (skips and name == "autogram")}
    return _all(record, network, batch, asked)


def _all(
    record: Recorder, network: str, batch: int, asked: Mapping[str, tuple[str, str]]
) -> Recorded:
    found = {name: record(network, batch, *step) for name, step in asked.items()}
    return {name: operations for name, operations in found.items() if operations is not None}

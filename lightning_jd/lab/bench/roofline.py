"""``lightning-jd bench roofline``: what a step would take on accelerators that are not here."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_jd._folders import writable_folder
from lightning_jd.errors import ArgumentError, UnknownNameError
from lightning_jd.lab.bench._gpus import GPUS
from lightning_jd.lab.bench._kernels import kernels_of
from lightning_jd.lab.bench._recorded import WORKS, Recorder, recorder
from lightning_jd.lab.bench._timeline import SMALLEST_KERNEL, WAIT, Timeline, timeline
from lightning_jd.lab.bench.launches import CASES as TINY
from lightning_jd.lab.clock import interleaved
from lightning_jd.lab.console import progress_bar
from lightning_jd.lab.figure import check_matplotlib, new_figure, save_figure
from lightning_jd.lab.report import Report, Value
from lightning_jd.lab.threads import threads_of_torch
from lightning_jd.lab.work.steps import working_step

if TYPE_CHECKING:
    from lightning_jd.lab.pretended import Operation

_STEPS_PER_EPOCH = 32
_MUST = 1.5
#: Seconds of an epoch in the paper, on an L4: SGD, and SSJD with the mean and with UPGrad.
PAPER = {
    "svhn": (0.79, 1.41, 1.80),
    "cifar10": (0.50, 1.76, 2.01),
    "eurosat": (0.81, 2.93, 3.21),
    "mnist": (0.47, 1.64, 1.90),
}
#: Network to the line of ``bench launches`` whose graph is of the same kind.
_KIND = {
    "svhn": "cnn-grouped",
    "cifar10": "cnn-grouped",
    "eurosat": "cnn-grouped",
    "mnist": "cnn",
    "mlp": "mlp",
    "resnet18": "resnet-block",
    "transformer": "transformer",
}
#: Network to the batches that are looked at.
BATCHES = {
    **dict.fromkeys(PAPER, (32, 128)),
    "mlp": (64, 256),
    "resnet18": (8, 32),
    "transformer": (4, 16),
}
#: Name of a column to engine and method.
STEPS = {
    "plain": ("plain", "mean"),
    "mean": ("ours", "mean"),
    "upgrad": ("ours", "upgrad"),
    "autogram": ("autogram", "upgrad"),
}
#: Minutes for one step of TorchJD on a CPU.
_SLOW = {("resnet18", 32), ("transformer", 16), ("mlp", 256), ("eurosat", 128)}
_COLUMNS = {
    "gpu": "device",
    "network": "network",
    "batch": "batch",
    "plain_ms": "plain ms",
    "mean": "mean / plain",
    "upgrad": "upgrad / plain",
    "quick_upgrad": "the same, host 3 times as fast",
    "autogram": "autogram upgrad / plain",
    "limit": "upgrad waits for",
    "kernels": "kernels: plain, mean, upgrad, autogram",
    "waits": "waits: plain, mean, upgrad, autogram",
}
_PAPER_COLUMNS = {
    "network": "network",
    "paper_sgd": "paper: SGD s",
    "constant": "of it, outside of the step (computed)",
    "paper_mean": "paper: SSJD-Mean / SGD",
    "model_mean": "computed: autojac, mean / SGD",
    "paper_upgrad": "paper: SSJD-UPGrad / SGD",
    "model_upgrad": "computed: autojac, UPGrad / SGD",
    "ours_mean": "computed: ours, mean / SGD",
    "ours_upgrad": "computed: ours, UPGrad / SGD",
    "mark": "at most 1.5",
}


@dataclass(frozen=True)
class Costs:
    """What is not counted but measured: seconds of the host per operation, by kind and engine."""

    per_operation: Mapping[tuple[str, str], float]

    def of(self, network: str, engine: str) -> float:
        """Of autojac as of autogram, which is the same library."""
        return self.per_operation[_KIND[network], "autogram" if engine == "autojac" else engine]


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
    kinds = sorted({_KIND[name] for name in networks})
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
        share = calibrated(measured, costs) if measured else _UNCALIBRATED
        rows: list[dict[str, Value]] = []
        for name in networks:
            for batch in BATCHES[name]:
                start(f"{name}, batch {batch}")
                recorded = _recorded(record, name, batch, torchjd)
                rows += [_row(gpu, name, batch, recorded, costs, share) for gpu in GPUS]
    paper = [_paper_row(name, steps, costs, share) for name, steps in measured.items()]
    report = Report("roofline", _TITLE, _COLUMNS, rows, _notes(share, costs, paper))
    page = Report("roofline_paper", _PAPER_TITLE, _PAPER_COLUMNS, paper, _paper_notes(share))
    others = [*page.write(output), _plot(rows, output / "roofline.png")]
    report.publish(output, *others)


_UNCALIBRATED = 0.25
_TITLE = "Computed, not measured: a step on four accelerators"
_PAPER_TITLE = "Computed, not measured: the paper's table of an L4"

Recorded = dict[str, "Sequence[Operation]"]


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


def calibrated(measured: Mapping[str, Recorded], costs: Costs) -> float:
    """The share of its peak at which an L4 takes as long as in the paper.

    The difference of an epoch of SSJD with the mean and one of SGD is free of whatever both do
    besides (data, logs). It is compared with the same difference of the computed steps, for each of
    the four networks; the median counts.
    """
    shares = []
    for name, steps in measured.items():
        if "autojac_mean" not in steps:
            continue
        sgd, mean, _ = PAPER[name]
        wanted = (mean - sgd) / _STEPS_PER_EPOCH
        low, high = 0.01, 1.0
        for _ in range(40):  # the time falls as the share grows
            middle = (low * high) ** 0.5
            theirs = _run(steps["autojac_mean"], "L4", name, "autojac", costs, middle).total
            plain = _run(steps["plain"], "L4", name, "plain", costs, middle).total
            low, high = (middle, high) if theirs - plain > wanted else (low, middle)
        shares.append(middle)
    return statistics.median(shares) if shares else _UNCALIBRATED


def _run(
    operations: Sequence[Operation], gpu: str, network: str, engine: str, costs: Costs, share: float
) -> Timeline:
    return timeline(operations, GPUS[gpu], costs.of(network, engine), share)


def _row(
    gpu: str, network: str, batch: int, recorded: Recorded, costs: Costs, share: float
) -> dict[str, Value]:
    found = {
        name: _run(operations, gpu, network, STEPS[name][0], costs, share)
        for name, operations in recorded.items()
    }
    plain = found["plain"]
    kernels = {name: sum(not each.is_wait for each in recorded[name]) for name in recorded}
    row: dict[str, Value] = {
        "gpu": gpu,
        "network": network,
        "batch": batch,
        "plain_ms": 1e3 * plain.total,
        "limit": _limit(found["upgrad"]),
        "kernels": ", ".join(str(kernels.get(name, "-")) for name in STEPS),
        "waits": ", ".join(str(found[name].waits) if name in found else "-" for name in STEPS),
    }
    quick = {
        name: timeline(
            recorded[name], GPUS[gpu], costs.of(network, STEPS[name][0]) / 3, share, solver=3.0
        ).total
        for name in ("plain", "upgrad")
    }
    row["quick_upgrad"] = quick["upgrad"] / quick["plain"]
    for name in found:
        row |= {
            name: found[name].total / plain.total,
            f"{name}_device_ms": 1e3 * found[name].device,
            f"{name}_host_ms": 1e3 * found[name].host,
            f"{name}_solving_ms": 1e3 * found[name].solving,
            f"{name}_gflop": sum(each.flops for each in recorded[name]) / 1e9,
            f"{name}_mb": sum(each.bytes for each in recorded[name]) / 1e6,
        }
    return row


def _limit(found: Timeline) -> str:
    parts = {"launches": found.host, "the device": found.device, "the program": found.solving}
    name = max(parts, key=lambda each: parts[each])
    return f"{name} ({100 * parts[name] / found.total:.0f} %)"


def _paper_row(network: str, steps: Recorded, costs: Costs, share: float) -> dict[str, Value]:
    engines = {"plain": "plain", "autojac_mean": "autojac", "autojac_upgrad": "autojac"}
    epoch = {
        name: _STEPS_PER_EPOCH
        * _run(operations, "L4", network, engines.get(name, "ours"), costs, share).total
        for name, operations in steps.items()
    }
    sgd, mean, upgrad = PAPER[network]
    constant = max(0.0, sgd - epoch["plain"])

    def ratio(name: str) -> float | None:
        return (constant + epoch[name]) / (constant + epoch["plain"]) if name in epoch else None

    ours = ratio("upgrad") or 0.0
    return {
        "network": network,
        "paper_sgd": sgd,
        "constant": constant,
        "paper_mean": mean / sgd,
        "model_mean": ratio("autojac_mean"),
        "paper_upgrad": upgrad / sgd,
        "model_upgrad": ratio("autojac_upgrad"),
        "ours_mean": ratio("mean"),
        "ours_upgrad": ours,
        "mark": "yes" if ours <= _MUST else "missed",
    }


def _notes(share: float, costs: Costs, paper: Sequence[Mapping[str, Value]]) -> tuple[str, ...]:
    asked = ", ".join(
        f"{kind} {name} {1e6 * s:.0f}" for (kind, name), s in sorted(costs.per_operation.items())
    )
    sources = "; ".join(f"{name}: {gpu.source}" for name, gpu in GPUS.items())
    return (
        "A model, and nothing else: no accelerator was there. One step is forward, Gramian, "
        "weights and gradients, without an optimizer, in float32 without tensor cores.",
        f"Assumed: {100 * share:.0f} % of the peak (from the paper's table of an L4), at least "
        f"{1e6 * SMALLEST_KERNEL:.0f} µs per kernel, {1e6 * WAIT:.0f} µs per wait, one kernel per "
        f"operation. Measured here, on one core: what the host needs to ask for one operation, in "
        f"µs ({asked}), and the program of UPGrad where the host solves it.",
        sources + ".",
    )


def _paper_notes(share: float) -> tuple[str, ...]:
    return (
        "Epochs of 32 steps of 32 images. The paper's epoch of SGD takes much longer than its "
        "kernels and launches do; what is left is taken for work outside of the step that every "
        f"method shares. The share of the peak ({100 * share:.0f} %) is the one number that was "
        "chosen to fit: the median over the four networks of what SSJD with the mean needs. "
        "UPGrad of TorchJD solves its programs one by one on the host of this machine.",
    )


def _plot(rows: Sequence[Mapping[str, Value]], path: Path) -> Path:
    figure = new_figure(9.0, 6.0, "Computed, not measured: a step of UPGrad over a plain step")
    shown = [row for row in rows if row["batch"] == min(BATCHES[str(row["network"])])]
    names = list(dict.fromkeys(str(row["network"]) for row in shown))
    for position, gpu in enumerate(GPUS):
        axes = figure.add_subplot(2, 2, position + 1)
        here = {str(row["network"]): row for row in shown if row["gpu"] == gpu}
        places = range(len(names))
        for shift, column, label in ((-0.2, "upgrad", "ours"), (0.2, "autogram", "autogram")):
            heights = [float(here[name].get(column) or 0) for name in names]
            axes.bar([place + shift for place in places], heights, 0.4, label=label)
        axes.set_yscale("log")
        axes.set_yticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
        axes.set_ylabel("plain steps", fontsize="small")
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.axhline(_MUST, color="black", linewidth=0.8, linestyle=":")
        axes.set_title(gpu, fontsize="small")
        axes.set_xticks(list(places), names, rotation=30, fontsize="x-small")
        if position == 0:
            axes.legend(fontsize="x-small")
    return save_figure(figure, path)

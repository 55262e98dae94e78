"""The steps that were recorded, as a queue on each accelerator, fitted to the paper's table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lightning_jd.lab.bench._gpus import GPUS
from lightning_jd.lab.bench._timeline import Timeline, timeline
from lightning_jd.lab.report import Value

if TYPE_CHECKING:
    from lightning_jd.lab.pretended import Operation

_STEPS_PER_EPOCH = 32
_UNCALIBRATED = 0.25
MUST = 1.5
#: Seconds of an epoch in the paper, on an L4: SGD, and SSJD with the mean and with UPGrad.
PAPER = {
    "svhn": (0.79, 1.41, 1.80),
    "cifar10": (0.50, 1.76, 2.01),
    "eurosat": (0.81, 2.93, 3.21),
    "mnist": (0.47, 1.64, 1.90),
}
#: Network to the line of ``bench launches`` whose graph is of the same kind.
KIND = {
    "svhn": "cnn-grouped",
    "cifar10": "cnn-grouped",
    "eurosat": "cnn-grouped",
    "mnist": "cnn",
    "mlp": "mlp",
    "resnet18": "resnet-block",
    "transformer": "transformer",
}
#: Name of a column to engine and method.
STEPS = {
    "plain": ("plain", "mean"),
    "mean": ("ours", "mean"),
    "upgrad": ("ours", "upgrad"),
    "autogram": ("autogram", "upgrad"),
}

#: Name of a step to its operations.
Recorded = dict[str, "Sequence[Operation]"]


@dataclass(frozen=True)
class Costs:
    """What is not counted but measured: seconds of the host per operation, by kind and engine."""

    per_operation: Mapping[tuple[str, str], float]

    def of(self, network: str, engine: str) -> float:
        """Of autojac as of autogram, which is the same library."""
        return self.per_operation[KIND[network], "autogram" if engine == "autojac" else engine]


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


def row_of(
    gpu: str, network: str, batch: int, recorded: Recorded, costs: Costs, share: float
) -> dict[str, Value]:
    """A network and a batch on an accelerator that reaches a share of its peak."""
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


def paper_row_of(network: str, steps: Recorded, costs: Costs, share: float) -> dict[str, Value]:
    """An epoch as the paper measures it, beside what the paper has measured."""
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
        "mark": "yes" if ours <= MUST else "missed",
    }

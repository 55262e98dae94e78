"""What ``lightning-jd bench roofline`` leaves behind: two tables and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lightning_jd.lab.bench._gpus import GPUS
from lightning_jd.lab.bench._roofline_model import MUST, Costs
from lightning_jd.lab.bench._timeline import SMALLEST_KERNEL, WAIT
from lightning_jd.lab.figure import new_figure, save_figure
from lightning_jd.lab.report import Report, Value

_TITLE = "Computed, not measured: a step on four accelerators"
_PAPER_TITLE = "Computed, not measured: the paper's table of an L4"
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


def publish(
    rows: Sequence[Mapping[str, Value]],
    paper: Sequence[Mapping[str, Value]],
    share: float,
    costs: Costs,
    folder: Path,
) -> None:
    """Print the table, and write it, the comparison with the paper, and the figure.

    Args:
        rows: The lines of the table.
        paper: The lines of the comparison.
        share: The share of its peak that a device reaches.
        costs: What was measured of the host.
        folder: Where to.
    """
    report = Report("roofline", _TITLE, _COLUMNS, rows, _notes(share, costs))
    page = Report("roofline_paper", _PAPER_TITLE, _PAPER_COLUMNS, paper, _paper_notes(share))
    others = [*page.write(folder), _plot(rows, folder / "roofline.png")]
    report.publish(folder, *others)


def _notes(share: float, costs: Costs) -> tuple[str, ...]:
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


def _batches(rows: Sequence[Mapping[str, Value]], network: Value) -> list[int]:
    return [int(row["batch"] or 0) for row in rows if row["network"] == network]


def _plot(rows: Sequence[Mapping[str, Value]], path: Path) -> Path:
    figure = new_figure(9.0, 6.0, "Computed, not measured: a step of UPGrad over a plain step")
    least = {row["network"]: min(_batches(rows, row["network"])) for row in rows}
    shown = [row for row in rows if row["batch"] == least[row["network"]]]
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
        axes.axhline(MUST, color="black", linewidth=0.8, linestyle=":")
        axes.set_title(gpu, fontsize="small")
        axes.set_xticks(list(places), names, rotation=30, fontsize="x-small")
        if position == 0:
            axes.legend(fontsize="x-small")
    return save_figure(figure, path)

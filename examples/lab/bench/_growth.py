"""How the cost of a step grows with the batch and with the depth, as a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from examples.lab.clock import Clock, interleaved, ratio
from examples.lab.figure import new_figure, save_figure
from examples.lab.report import Report
from examples.lab.work.networks import Work, cnn, mlp, transformer
from examples.lab.work.steps import make_step

_BATCHES = (16, 32, 64, 128, 256)
_DEPTHS = (1, 2, 4, 8, 16)
#: Panel -> line -> a function from the size on the x-axis to the work.
_LINES: dict[str, dict[str, Callable[[int], Work]]] = {
    "batch": {
        "CNN of CIFAR-10": lambda batch: cnn("cifar10", batch),
        "MLP 784-1024-1024-10": lambda batch: mlp(batch),
        "transformer, 2 layers": lambda batch: transformer(batch, layers=2),
    },
    "depth": {
        "MLP of width 512, batch 64": lambda depth: mlp(64, width=512, hidden=depth),
        "transformer, batch 32": lambda depth: transformer(32, layers=depth),
    },
}
_SIZES = {"batch": _BATCHES, "depth": _DEPTHS}


class Point(NamedTuple):
    """One measurement: milliseconds of the plain step, and ours as a multiple of it."""

    panel: str
    line: str
    size: int
    plain_ms: float
    ratio: float


def points() -> list[tuple[str, str, int]]:
    """Panel, line and size of everything that :func:`measure_point` can measure."""
    return [
        (panel, line, size) for panel in _LINES for line in _LINES[panel] for size in _SIZES[panel]
    ]


def measure_point(panel: str, line: str, size: int, repeats: int, clock: Clock) -> Point:
    """Time the plain step and ours in turns."""
    build = _LINES[panel][line]
    candidates = {name: make_step(name, build(size), "mean") for name in ("plain", "ours")}
    steps = {name: step for name, step in candidates.items() if step is not None}
    timings = interleaved(steps, repeats=repeats, warmup=2, clock=clock, budget=5.0)
    plain = timings["plain"]
    return Point(panel, line, size, 1000 * plain.median, ratio(timings["ours"], plain))


def growth_report(measured: list[Point]) -> Report:
    """The numbers behind the picture."""
    columns = {
        "panel": "against",
        "line": "work",
        "size": "size",
        "plain_ms": "plain ms",
        "ratio": "ours / plain",
    }
    rows = [point._asdict() for point in measured]
    return Report("engines_growth", "Growth of the cost of a step", columns, rows)


def plot(measured: list[Point], path: Path) -> Path:
    """Draw both panels into a PNG."""
    title = "Gramian and update of one objective per instance, against plain SGD"
    figure = new_figure(10, 4, title)
    for axes, panel in zip(figure.subplots(1, len(_LINES), sharey=True), _LINES, strict=True):
        for line, sizes, ratios in _curves(measured, panel):
            axes.plot(sizes, ratios, marker="o", label=line)
        axes.axhline(1, color="grey", linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.set_xticks(_SIZES[panel], [str(size) for size in _SIZES[panel]])
        axes.set_xlabel({"batch": "instances in the batch", "depth": "hidden layers"}[panel])
        axes.set_ylim(bottom=0)
        if axes.lines[:-1]:  # all but the line at 1
            axes.legend()
    figure.axes[0].set_ylabel("time of a step / plain step")
    return save_figure(figure, path, dpi=150)


def _curves(measured: list[Point], panel: str) -> Iterator[tuple[str, list[int], list[float]]]:
    for line in _LINES[panel]:
        mine = [point for point in measured if (point.panel, point.line) == (panel, line)]
        if mine:
            yield line, [point.size for point in mine], [point.ratio for point in mine]

"""Curves over seeds, and the figure that compares methods, three panels of them at a time."""

import statistics
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from examples.lab.figure import new_figure, save_figure
from examples.lab.statistics import standard_error
from examples.lab.studies._run import Outcome, Run

_POINTS_PER_EPOCH = 4
_PANELS = 3
_SHOWN_EVERYWHERE = ("Mean", "UPGrad")  # as in the paper, for reference
_COLOURS = (
    *("tab:blue", "tab:green", "tab:purple", "tab:brown", "tab:pink"),
    *("tab:olive", "tab:cyan", "navy", "tab:gray"),
)
_REFERENCE_COLOURS = ("black", "red", "darkorange", "gold", "tan")


class Curve(NamedTuple):
    """A quantity over training.

    Attributes:
        quantity: What it is.
        points: Epoch, mean over seeds, and its standard error (zero for one seed).
    """

    quantity: str
    points: list[tuple[float, float, float]]


def curves_of(runs: Sequence[tuple[Run, Outcome]]) -> list[Curve]:
    """Training loss and similarity to SGD, averaged over quarters of an epoch, then over seeds.

    Runs that are not finished have no curve.
    """
    finished = [(run, outcome) for run, outcome in runs if outcome.finished]
    if not finished:
        return [Curve("loss", []), Curve("similarity", [])]
    steps = -(-finished[0][0].size // finished[0][0].batch)
    return [
        Curve("loss", _averaged([o.losses for _, o in finished], steps)),
        Curve("similarity", _averaged([o.similarities for _, o in finished], steps)),
    ]


def _averaged(series: Sequence[Sequence[float]], steps: int) -> list[tuple[float, float, float]]:
    width = max(1, steps // _POINTS_PER_EPOCH)
    points = []
    for begin in range(0, len(series[0]), width):
        values = [statistics.mean(one[begin : begin + width]) for one in series]
        middle = min(begin + width / 2, len(series[0])) / steps
        points.append((middle, statistics.mean(values), standard_error(values) or 0.0))
    return points


def draw_comparison(curves: Mapping[str, Sequence[Curve]], title: str, path: Path) -> Path:
    """Draw losses above similarities, with the standard error as a band.

    Args:
        curves: Method to the two curves of :func:`curves_of`.
        title: Above the panels.
        path: The PNG file to write.
    """
    reference = [label for label in curves if label.startswith(_SHOWN_EVERYWHERE)]
    others = [label for label in curves if label not in reference]
    colours: dict[str, Any] = dict(zip(reference, _REFERENCE_COLOURS, strict=False))
    colours |= {label: _COLOURS[i % len(_COLOURS)] for i, label in enumerate(others)}
    each = max(1, -(-len(others) // _PANELS))
    rest = iter(others)
    groups = [[*reference, *group] for group in iter(lambda: list(islice(rest, each)), [])] or [
        reference
    ]
    figure = new_figure(max(6.0, 4.6 * len(groups)), 7.5, title)
    panels = figure.subplots(2, len(groups), sharey="row", squeeze=False)
    for column, labels in enumerate(groups):
        for row, ylabel in enumerate(("training loss", "similarity to the SGD update")):
            axes = panels[row][column]
            for label in labels:
                _draw(axes, curves[label][row], label, colours[label])
            axes.set(xlabel="epoch", ylabel="" if column else ylabel)
            axes.grid(alpha=0.3, which="both" if row == 0 else "major")
        panels[0][column].legend(fontsize="small")
    panels[0][0].set_yscale("log")
    panels[1][0].set_ylim(-0.05, 1.05)
    return save_figure(figure, path)


def _draw(axes: Any, curve: Curve, label: str, colour: Any) -> None:
    if not curve.points:
        axes.plot([], [], color=colour, label=f"{label} (diverged)")
        return
    epochs, means, errors = zip(*curve.points, strict=True)
    is_reference = label.startswith(_SHOWN_EVERYWHERE)
    axes.plot(epochs, means, color=colour, label=label, linewidth=2 if is_reference else 1.3)
    low = [max(mean - error, 1e-6) for mean, error in zip(means, errors, strict=True)]
    high = [mean + error for mean, error in zip(means, errors, strict=True)]
    axes.fill_between(epochs, low, high, color=colour, alpha=0.2, linewidth=0)

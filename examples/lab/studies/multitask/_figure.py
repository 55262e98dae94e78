"""The figure of ``mtl``: methods in the space of the tasks, and their Δm."""

from __future__ import annotations

import statistics
from itertools import combinations
from pathlib import Path
from typing import Any

from examples.lab.data.multitask import Task
from examples.lab.figure import new_figure, save_figure
from examples.lab.statistics import standard_error
from examples.lab.studies.multitask._page import PLAIN, Comparison, label_of, worst_drops

_MOST_PAIRS = 3
_TAKEN = (6, 14, 15)  # of matplotlib's tab20: the red and the greys of those that are marked
_MARKED = {PLAIN: "darkgrey", "upgrad": "tab:red"}


def draw(comparison: Comparison, title: str, path: Path) -> Path:
    """One point per method in the plane of every pair of tasks, beside the bars of Δm.

    With more than three pairs of tasks the plane is that of the mean and the worst drop.

    Args:
        comparison: The finished runs.
        title: Above the panels.
        path: The PNG file to write.
    """
    pairs = list(combinations(comparison.tasks, 2))
    planes = len(pairs) if len(pairs) <= _MOST_PAIRS else 1
    figure = new_figure(5.2 * planes + 5.0, 5.6, title)
    panels = figure.subplots(1, planes + 1, squeeze=False)[0]
    colours = _colours(comparison)
    if len(pairs) <= _MOST_PAIRS:
        for axes, pair in zip(panels, pairs, strict=False):
            _draw_pair(axes, comparison, pair, colours)
    else:
        _draw_drops(panels[0], comparison, colours)
    _draw_bars(panels[-1], comparison, colours)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=7, fontsize="small")
    return save_figure(figure, path)


def _colours(comparison: Comparison) -> dict[str, Any]:
    from matplotlib import colormaps

    others = [method for method in comparison.methods if method not in _MARKED]
    free = [i for i in range(20) if i not in _TAKEN]
    shades = {m: colormaps["tab20"](free[i % len(free)]) for i, m in enumerate(others)}
    return shades | _MARKED


def _draw_pair(
    axes: Any, comparison: Comparison, pair: tuple[Task, Task], colours: dict[str, Any]
) -> None:
    places = [comparison.names.index(task.name) for task in pair]
    corner = comparison.baseline()[places].tolist()
    for method in comparison.methods:
        values = comparison.values(method)[:, places]
        finished = values[~values.isnan().any(dim=1)]
        if len(finished):
            _draw_point(axes, label_of(method), finished.T.tolist(), colours[method])
    axes.axvline(corner[0], color="grey", linewidth=0.8, linestyle="--")
    axes.axhline(corner[1], color="grey", linewidth=0.8, linestyle="--")
    axes.plot(*corner, marker="*", markersize=14, color="black", linestyle="", label="single task")
    axes.set(xlabel=f"{pair[0].name}, {pair[0].metric}", ylabel=f"{pair[1].name}, {pair[1].metric}")
    for task, invert in zip(pair, (axes.invert_xaxis, axes.invert_yaxis), strict=True):
        if not task.higher_is_better:
            invert()  # better is always to the upper right
    axes.set_title("better: upper right", fontsize="small")
    axes.grid(alpha=0.3)


def _draw_point(axes: Any, label: str, values: list[list[float]], colour: Any) -> None:
    x, y = (statistics.mean(value) for value in values)
    errors = [standard_error(value) or 0.0 for value in values]
    axes.errorbar(
        x, y, xerr=errors[0], yerr=errors[1], fmt="o", capsize=2, color=colour, label=label
    )


def _draw_drops(axes: Any, comparison: Comparison, colours: dict[str, Any]) -> None:
    for method in comparison.methods:
        drops = [drop for drop in comparison.drops(method) if drop == drop]
        if drops:
            worst = max(worst_drops(comparison, method).values())
            values = [drops, [worst] * len(drops)]
            _draw_point(axes, label_of(method), values, colours[method])
    axes.axvline(0, color="grey", linewidth=0.8, linestyle="--")
    axes.axhline(0, color="grey", linewidth=0.8, linestyle="--")
    axes.set(xlabel="Δm %, mean over the tasks", ylabel="worst task, % worse than single task")
    axes.set_title("better: lower left", fontsize="small")
    axes.grid(alpha=0.3)


def _draw_bars(axes: Any, comparison: Comparison, colours: dict[str, Any]) -> None:
    found = {m: [d for d in comparison.drops(m) if d == d] for m in comparison.methods}
    known = {method: drops for method, drops in found.items() if drops}
    order = sorted(known, key=lambda method: -statistics.mean(known[method]))
    means = [statistics.mean(known[method]) for method in order]
    errors = [standard_error(known[method]) or 0.0 for method in order]
    shades = [colours[method] for method in order]
    axes.barh([label_of(method) for method in order], means, xerr=errors, color=shades, capsize=3)
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.set(xlabel="Δm %: how much worse than single task (± standard error)")
    axes.set_title("better: to the left", fontsize="small")
    axes.set_axisbelow(True)
    axes.grid(alpha=0.3, axis="x")

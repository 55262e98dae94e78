"""The figure of ``regularisation``."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from examples.lab.figure import new_figure, save_figure
from examples.lab.statistics import power_of_ten, smooth_mean, standard_error
from examples.lab.studies._run import Outcome, Run


def draw(
    best: Mapping[float | None, Sequence[tuple[Run, Outcome]]], title: str, path: Path
) -> Path:
    """Draw area, loss, weights and conflicts of the best runs of each setting.

    Args:
        best: Regularisation (``None`` is Mean) to the best run of each seed.
        title: Above the four panels.
        path: The PNG file to write.
    """
    figure = new_figure(11, 7.5, title)
    from matplotlib import colormaps

    regs = sorted(reg for reg in best if reg is not None)
    colours: dict[float | None, Any] = {None: "black"}
    for i, level in enumerate(regs):
        colours[level] = colormaps["viridis"](0.9 * i / max(1, len(regs) - 1))
    (areas, losses), (weights, harmed) = figure.subplots(2, 2)
    _area_panel(areas, best, regs, colours)
    panels: list[tuple[Any, str, Callable[[Outcome], list[float]]]] = [
        (losses, "training loss", lambda outcome: outcome.losses),
        (weights, "largest weight, log10 (Mean: 0)", _magnitudes),
        (harmed, "share of images harmed by the step", lambda outcome: outcome.harmed),
    ]
    for axes, ylabel, series in panels:
        for reg in [*regs, None]:
            curve = smooth_mean([series(o) for _, o in best[reg] if o.finished])
            if curve:
                label = "Mean" if reg is None else power_of_ten(reg)
                axes.plot(curve, color=colours[reg], label=label)
        axes.set(xlabel="step", ylabel=ylabel)
        axes.grid(alpha=0.3)
    losses.set_yscale("log")
    losses.legend(title="reg", fontsize="small")
    return save_figure(figure, path)


def _area_panel(
    axes: Any, best: Mapping[float | None, Any], regs: list[float], colours: Any
) -> None:
    for position, reg in enumerate(regs):
        values = [outcome.area for _, outcome in best[reg]]
        if all(map(math.isfinite, values)):
            axes.errorbar(
                position,
                statistics.mean(values),
                standard_error(values) or 0.0,
                fmt="o",
                capsize=4,
                color=colours[reg],
            )
        else:
            axes.annotate(
                "diverged", (position, 0.9), xycoords=("data", "axes fraction"), ha="center"
            )
    if best.get(None):
        values = [outcome.area for _, outcome in best[None]]
        mean, error = statistics.mean(values), standard_error(values) or 0.0
        axes.axhline(mean, color=colours[None], label="Mean")
        axes.axhspan(mean - error, mean + error, color=colours[None], alpha=0.12)
        axes.legend()
    axes.set_xticks(range(len(regs)), [power_of_ten(reg) for reg in regs])
    # Logarithmic, because reg = 0 may be far off, but with numbers that can be read.
    axes.set_yscale("log")
    for axis_format in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        axis_format("{x:g}")
    axes.set(xlabel="reg", ylabel="area under the training loss")
    axes.grid(alpha=0.3, axis="y", which="both")


def _magnitudes(outcome: Outcome) -> list[float]:
    # The weights of reg = 0 span dozens of orders: the mean of a few steps is that of their logs.
    return [math.log10(weight) for weight in outcome.largest_weights]

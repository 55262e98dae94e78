"""Figures of the metrics. Matplotlib is imported when the first one is drawn, and only then."""

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from lightning_jd.errors import MissingDependencyError

if TYPE_CHECKING:
    from matplotlib.axes import Axes as _Axes
    from matplotlib.figure import Figure as _Figure

    Axes: TypeAlias = _Axes
    Figure: TypeAlias = _Figure
else:
    Axes = Figure = Any

# The update in blue, what the mean would do in orange, then the rest (Okabe and Ito's palette,
# which colour-blind readers can tell apart).
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C6D1F", "#555555")
_POINTS = 64  # more stretches than this are merged for drawing
_ANNOTATED = 12  # up to this many objectives, the cells of a heat map show their number


class Curve(NamedTuple):
    """A line with a band: ``middle`` ± ``spread`` at the updates ``x``; NaN leaves a gap."""

    label: str
    x: Sequence[float]
    middle: Sequence[float]
    spread: Sequence[float]


def new_axes(ax: Axes | None, width: float = 6.4, height: float = 3.6) -> tuple[Figure, Axes]:
    """The axes themselves with their figure, or a new figure.

    Raises:
        MissingDependencyError: If matplotlib is not installed.
    """
    if ax is not None:
        return cast("Figure", ax.figure), ax
    figure, ax = pyplot().subplots(figsize=(width, height), layout="constrained")
    return figure, ax


def new_grid(rows: int, columns: int) -> tuple[Figure, list[Axes]]:
    """A new figure with many axes, row by row."""
    size = (4.2 * columns, 2.9 * rows)
    figure, axes = pyplot().subplots(rows, columns, figsize=size, layout="constrained")
    return figure, list(axes.flat)


def pyplot() -> Any:
    """The module ``matplotlib.pyplot``.

    Raises:
        MissingDependencyError: If matplotlib is not installed.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise MissingDependencyError.of("The figure", "matplotlib", "plot") from error
    return plt


def draw_curves(
    curves: Sequence[Curve],
    *,
    ax: Axes | None,
    title: str,
    ylabel: str,
    limits: tuple[float, float] | None = None,
) -> tuple[Figure, Axes]:
    """Draw lines with bands against the number of updates.

    Args:
        curves: The lines; several are named in a legend.
        ax: The axes to draw on; a new figure by default.
        title: What is shown.
        ylabel: The unit.
        limits: What the vertical axis shows at least, so that noise does not fill the picture;
            bands end there, because a share cannot be negative.
    """
    figure, ax = new_axes(ax)
    for index, curve in enumerate(curves):
        color = COLORS[index % len(COLORS)]
        _, x, middle, spread = merged(curve, _POINTS)
        ax.plot(x, middle, color=color, linewidth=1.8, label=curve.label)
        least, most = limits if limits is not None else (-math.inf, math.inf)
        band = list(zip(middle, spread, strict=True))
        low = [max(a - b, min(a, least)) for a, b in band]
        high = [min(a + b, max(a, most)) for a, b in band]
        ax.fill_between(x, low, high, color=color, alpha=0.18, linewidth=0)
    if len(curves) > 1:
        # Two lines leave room inside; more names would cover them.
        beside = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "ncols": 1 + len(curves) // 9}
        place = {"loc": "best"} if len(curves) == 2 else beside
        ax.legend(frameon=False, fontsize=8, **place)
    if limits is not None:
        bottom, top = ax.get_ylim()
        margin = 0.03 * (limits[1] - limits[0])
        ax.set_ylim(min(bottom, limits[0] - margin), max(top, limits[1] + margin))
    _finish(ax, title, "updates", ylabel)
    return figure, ax


def draw_heat_map(
    matrix: Sequence[Sequence[float]], names: Sequence[str], *, ax: Axes | None, title: str
) -> tuple[Figure, Axes]:
    """Draw cosines between named objectives: red pairs conflict, blue pairs agree."""
    m = len(names)
    side = min(max(0.62 * m, 2.6), 9.0)
    room = 0.075 * min(max(map(len, names)), 24)  # for the names, in inches
    figure, ax = new_axes(ax, side + 1.4 + room, side + 0.6 + 0.65 * room)
    image = ax.imshow(matrix, cmap="RdBu", vmin=-1, vmax=1)
    # Above some forty objectives names overlap: name every k-th only.
    shown = range(0, m, math.ceil(m / 40))
    labels = [_short(names[i]) for i in shown]
    ax.set_xticks(shown, labels, rotation=40, ha="right", rotation_mode="anchor", fontsize=9)
    ax.set_yticks(shown, labels, fontsize=9)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    if m <= _ANNOTATED:
        for i, row in enumerate(matrix):
            for j, value in enumerate(row):
                if math.isnan(value):
                    continue
                text = f"{round(value, 2) + 0.0:.2f}"  # adding zero turns "-0.00" into "0.00"
                shade = "white" if abs(value) > 0.6 else "#222222"
                ax.text(j, i, text, ha="center", va="center", color=shade, fontsize=8)
    bar = figure.colorbar(image, ax=ax, shrink=0.85, ticks=[-1, 0, 1])
    bar.ax.set_yticklabels(["−1 conflict", "0", "1 agree"], fontsize=8)
    bar.outline.set_visible(False)
    ax.set_title(title, loc="left", fontsize=11)
    return figure, ax


def draw_pairs(
    names: Sequence[str],
    bars: Sequence[tuple[str, Sequence[float]]],
    *,
    ax: Axes | None,
    title: str,
    xlabel: str,
) -> tuple[Figure, Axes]:
    """Draw horizontal bars side by side, one group per objective, the first objective on top."""
    figure, ax = new_axes(ax, 6.4, min(max(1.6 + 0.45 * len(names), 2.4), 14.0))
    thickness = 0.8 / len(bars)
    for index, (label, values) in enumerate(bars):
        rows = [row + (index - (len(bars) - 1) / 2) * thickness for row in range(len(names))]
        ax.barh(rows, values, height=thickness * 0.9, color=COLORS[index], label=label)
    ax.set_yticks(range(len(names)), [_short(name) for name in names], fontsize=9)
    ax.invert_yaxis()
    ax.axvline(0, color="#888888", linewidth=0.8)
    ax.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    _finish(ax, title, xlabel, "")
    return figure, ax


def merged(curve: Curve, points: int) -> Curve:
    """The curve with at most ``points`` points, neighbours merged; the band covers what varied.

    Example:
        >>> merged(Curve("a", [1, 2, 3, 4], [0.0, 2.0, 1.0, 1.0], [0.0, 0.0, 0.5, 0.5]), points=2)
        Curve(label='a', x=[1.5, 3.5], middle=[1.0, 1.0], spread=[1.0, 0.5])
    """
    group = max(1, math.ceil(len(curve.x) / points))
    x, middle, spread = [], [], []
    for start in range(0, len(curve.x), group):
        part = slice(start, start + group)
        values = [v for v in curve.middle[part] if not math.isnan(v)]
        within = [s for s in curve.spread[part] if not math.isnan(s)]
        x.append(statistics.fmean(curve.x[part]))
        middle.append(statistics.fmean(values) if values else math.nan)
        inner = statistics.fmean(s * s for s in within) if within else 0.0
        outer = statistics.pvariance(values) if values else 0.0
        spread.append(math.sqrt(inner + outer))
    return Curve(curve.label, x, middle, spread)


def curve_of(label: str, values: Sequence[float]) -> Curve:
    """A curve through results that were collected one by one, without a band of their own."""
    return Curve(label, list(range(1, len(values) + 1)), list(values), [0.0] * len(values))


def _short(name: str) -> str:
    # `$` would switch matplotlib to mathematics, in the middle of somebody's task name.
    return (name if len(name) <= 24 else name[:23] + "…").replace("$", r"\$")


def _finish(ax: Axes, title: str, xlabel: str, ylabel: str) -> None:
    ax.set_title(title, loc="left", fontsize=11)
    ax.set_xlabel(xlabel, fontsize=9)
    ax.set_ylabel(ylabel, fontsize=9)
    ax.tick_params(labelsize=8)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="x" if not ylabel else "y", color="#E5E5E5", linewidth=0.8)
    ax.set_axisbelow(True)

"""The figure of ``imbalance``: the worst task over the factor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from examples.lab.figure import new_figure, save_figure
from examples.lab.report import Value
from examples.lab.studies._imbalance import TRACE

#: Methods with a colour and a name in the figure; the others are thin lines.
_MARKED = {
    "upgrad": ("UPGrad", "#2ca02c", "-"),
    TRACE: ("UPGrad 0.2", "#2ca02c", ":"),
    "sum": ("sum", "#e0524a", "-"),
    "config": ("ConFIG", "#3b8bd0", "-"),
    "gls": ("GLS", "#b07fd8", "--"),
    "uw": ("UW", "#e08a1e", "--"),
}
_INK = "#7d8590"  # legible on white and on black: the background is transparent
_APART = 7.0  # least distance of two names, in points of the score


def draw(rows: Sequence[Mapping[str, Value]], factors: Sequence[float], path: Path) -> Path:
    """Draw one line per method, with standard errors and names for some of them.

    Args:
        rows: Those of the table.
        factors: Of the multiplied loss.
        path: The PNG file to write.
    """
    figure = new_figure(6.5, 4.4, "")
    figure.patch.set_alpha(0.0)
    axes = figure.subplots()
    axes.patch.set_alpha(0.0)
    for row in sorted(rows, key=lambda row: str(row["name"]) in _MARKED):
        _line(axes, row, factors)
    _names(axes, rows, factors)
    axes.set(xscale="log", ylim=(-3, 103), xticks=list(factors))
    axes.set_xticks(list(factors), [f"{factor:,.0f}" for factor in factors])
    axes.set_xlabel("one of three losses is multiplied by", fontsize=12, color=_INK)
    axes.set_ylabel("worst task (100: a network of its own)", fontsize=12, color=_INK)
    axes.minorticks_off()
    axes.tick_params(labelsize=12, colors=_INK)
    axes.grid(alpha=0.3, color=_INK)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(_INK)
    return save_figure(figure, path, dpi=200)


def _line(axes: Any, row: Mapping[str, Value], factors: Sequence[float]) -> None:
    scores = [row[f"score {factor:g}"] for factor in factors]
    if row["name"] not in _MARKED:
        axes.plot(factors, scores, color=_INK, alpha=0.45, linewidth=1)
        return
    _, colour, style = _MARKED[str(row["name"])]
    errors = [row[f"error {factor:g}"] for factor in factors]
    axes.errorbar(
        factors, scores, errors, color=colour, linestyle=style, linewidth=2.5, marker="o", capsize=3
    )


def _names(axes: Any, rows: Sequence[Mapping[str, Value]], factors: Sequence[float]) -> None:
    """Write the names beside the ends of the lines, from the top, without overlaps."""
    last = f"score {factors[-1]:g}"
    ends = sorted(
        ((float(row[last] or 0), str(row["name"])) for row in rows if row["name"] in _MARKED),
        reverse=True,
    )
    above = 103.0 + _APART
    for i, (score, name) in enumerate(ends):
        below = _APART * (len(ends) - 1 - i)  # room for the names that follow
        above = min(above - _APART, max(score, below))
        label, colour, _ = _MARKED[name]
        axes.annotate(
            label,
            (factors[-1], score),
            (1.04, above),
            textcoords=axes.get_yaxis_transform(),
            color=colour,
            fontsize=12,
            fontweight="bold",
            va="center",
            annotation_clip=False,
        )

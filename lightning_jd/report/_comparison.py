"""Several runs beside each other: a table, and the curves of each objective."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from lightning_jd.report._page import _MOST_LINES, _chart, _grid, _whole
from lightning_jd.report._run import Run, Track
from lightning_jd.report._scatter import Point, scatter_chart
from lightning_jd.report._svg import line_chart

_STYLE = (
    "<style>table.runs td, table.runs th { width: auto; text-align: right; white-space: nowrap; "
    "font-variant-numeric: tabular-nums; } table.runs td:first-child, table.runs th:first-child "
    "{ text-align: left; } td.long { text-align: left !important; white-space: normal !important; "
    "color: var(--act); } .scatter path { stroke-width: 1.5; fill: none; opacity: 0.6; } "
    ".thin { stroke-width: 1; opacity: 0.5; } .corner { fill: var(--ink); } "
    ".wide { overflow-x: auto; margin: 16px 0; }</style>"
)


@dataclass(frozen=True)
class Table:
    """Words in rows and columns, the first of which names the row.

    Attributes:
        columns: The heads.
        rows: The cells of each row.
        errors: Further rows: the first cell, and a sentence in the place of the others.

    Example:
        >>> print(Table(["method", "loss"], [["sum", "0.5"], ["upgrad", "0.25"]]).text())
        method  loss
        sum      0.5
        upgrad  0.25
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    errors: Mapping[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """The table for a terminal."""
        rows = [self.columns, *self.rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        widths[0] = max(widths[0], *map(len, self.errors), 0)
        lines = [
            "  ".join(
                cell.rjust(width) if i else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        lines += [f"{name.ljust(widths[0])}  {text}" for name, text in self.errors.items()]
        return "\n".join(lines)

    def html(self) -> str:
        """The table for a page or a notebook."""
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        rows = [f"<tr>{''.join(f'<td>{escape(c)}</td>' for c in row)}</tr>" for row in self.rows]
        rows += [
            f'<tr><td>{escape(name)}</td><td class="long" colspan="{len(self.columns) - 1}">'
            f"{escape(text)}</td></tr>"
            for name, text in self.errors.items()
        ]
        return f'<table class="runs"><tr>{head}</tr>{"".join(rows)}</table>'


def mean_and_error(values: Sequence[float], digits: int = 3) -> str:
    """The mean, and with several values its standard error.

    Example:
        >>> mean_and_error([0.5]), mean_and_error([1.0, 2.0]), mean_and_error([])
        ('0.5', '1.5 ± 0.5', '-')
        >>> mean_and_error([1000.0, 1040.0])
        '1020 ± 20'
    """
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return "-"
    mean = _rounded(statistics.fmean(known), digits)
    if len(known) < 2:
        return mean
    return f"{mean} ± {_rounded(statistics.stdev(known) / math.sqrt(len(known)), 1)}"


def _rounded(value: float, digits: int) -> str:
    return f"{float(f'{value:.{digits}g}'):g}"  # without an exponent for 1,020


def comparison_page(title: str, table: Table, runs: Mapping[str, Sequence[Run]]) -> str:
    """Table and curves as one self-contained page.

    Args:
        title: The heading.
        table: The table.
        runs: Label to the runs of its seeds.
    """
    return _page(title, table, _grid(curves(runs)))


def front_page(
    title: str,
    summary: Table,
    views: Sequence[tuple[Mapping[str, Sequence[Point]], Sequence[Point], str, str]],
    table: Table,
    better: str,
) -> str:
    """The points of a front as one self-contained page.

    Args:
        title: The heading.
        summary: The table above the drawings.
        views: For each pair of objectives the arguments of :func:`scatter_chart`.
        table: The table of all runs, below.
        better: In which direction points are better.
    """
    hint = f"{better} is better. Squares: one task alone. Bars are one standard error over seeds."
    charts = [_chart(f"{x} and {y}", hint, scatter_chart(lines, corners, x, y))
              for lines, corners, x, y in views]  # fmt: skip
    return _page(title, summary, _grid(charts) + _card(table))


def _page(title: str, table: Table, rest: str) -> str:
    return _whole(title, f"{_STYLE}{_card(table)}{rest}")


def _card(table: Table) -> str:
    return f'<article class="card wide">{table.html()}</article>'


def curves(runs: Mapping[str, Sequence[Run]]) -> list[str]:
    """One chart for each objective (or of the mean loss), with one line for each label."""
    names = dict.fromkeys(n for each in runs.values() for run in each for n in run.members("loss/"))
    found = []
    for name in list(names)[:_MOST_LINES] or [""]:
        track = f"loss/{name}" if name else "mean_loss"
        lines = [
            (label, joined([run.tracks[track] for run in each if track in run.tracks]))
            for label, each in runs.items()
        ]
        lines = [(label, line) for label, line in lines if line.counts]
        hint = "Training loss, mean over seeds; the band is one standard deviation."
        found.append(_chart(name or "mean loss", hint, line_chart(lines)))
    return found


def joined(tracks: Sequence[Track]) -> Track:
    """The curve of all values of several curves.

    Example:
        >>> first, second = Track(), Track()
        >>> first.add(0, 1.0)
        >>> second.add(0, 3.0)
        >>> joined([first, second]).points()
        [(0.0, 2.0, 1.0)]
    """
    width = max((track.width for track in tracks), default=1)
    whole = Track(width)
    for track in tracks:
        together = width // track.width
        for ours, theirs in (
            (whole.sums, track.sums),
            (whole.squares, track.squares),
            (whole.counts, track.counts),
        ):
            bins = [sum(theirs[i : i + together]) for i in range(0, len(theirs), together)]
            ours.extend([0.0] * (len(bins) - len(ours)))
            ours[: len(bins)] = [a + b for a, b in zip(ours, bins, strict=False)]
    return whole

"""Charts as inline SVG: no library, no script, and every text escaped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from lightning_jd.report._run import Cosines, Track

# Okabe and Ito's palette, which colour-blind readers can tell apart; the page defines the classes.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C6D1F", "#777777")
_WIDTH, _HEIGHT = 520, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 10, 34
_POINTS = 64  # of a line; what varied between them is in its band
_LARGEST_WITH_NUMBERS = 12


def line_chart(
    lines: Sequence[tuple[str, Track]], *, limits: tuple[float, float] | None = None
) -> str:
    """Draw curves with bands of one standard deviation against the step.

    Args:
        lines: Name and curve, in the order of the colours.
        limits: The range of a bounded quantity: the vertical axis shows it, and bands end there.
            Without it, positive values over more than two decades are drawn on a logarithmic axis.
    """
    points = {name: track.points(_POINTS) for name, track in lines}
    values = [m + sign * s for line in points.values() for _, m, s in line for sign in (-1, 1)]
    middles = [m for line in points.values() for _, m, _ in line]
    if not middles:
        return ""
    log = limits is None and min(middles) > 0 and max(middles) > 100 * min(middles)
    shown = middles if log else [*limits, *middles] if limits is not None else values
    low, high = min(shown), max(shown)
    axis = _Axis(low, high, log)
    last = max(x for line in points.values() for x, _, _ in line) or 1.0

    def place(x: float, y: float) -> str:
        right = _LEFT + x / last * (_WIDTH - _LEFT - _RIGHT)
        return f"{right:.1f},{_TOP + (1 - axis.fraction(y)) * (_HEIGHT - _TOP - _BOTTOM):.1f}"

    parts = [_grid(axis, last)]
    for index, line in enumerate(points.values()):
        color = COLORS[index % len(COLORS)]
        upper = [place(x, m + s) for x, m, s in line]
        lower = [place(x, m - s) for x, m, s in reversed(line)]
        middle = [place(x, m) for x, m, _ in line]
        middle = middle * 2 if len(middle) == 1 else middle  # a single point is still to be seen
        earlier = list(points.values())[:index]
        dashes = ' stroke-dasharray="7 7"' if any(_coincide(line, o, axis) for o in earlier) else ""
        parts.append(
            f'<polygon class="band" fill="{color}" points="{" ".join(upper + lower)}"/>'
            f'<polyline class="line" stroke="{color}" points="{" ".join(middle)}"{dashes}/>'
        )
    parts.append(_hover(points, last))
    return _svg("chart", _WIDTH, _HEIGHT, parts) + (
        _legend(list(points)) if len(points) > 1 else ""
    )


def bar_chart(shares: Mapping[str, float]) -> str:
    """Draw shares from 0 to 1 as bars, with their names and values."""
    if not shares:
        return ""
    longest = max(len(_short(name)) for name in shares)
    left, row = 14 + 6.6 * longest, 24
    width = _WIDTH - left - 60
    parts = []
    for i, (name, share) in enumerate(shares.items()):
        y = i * row + row / 2
        parts.append(
            _name(name, left - 6, y, 0)
            + f'<rect class="bar" x="{left:.0f}" y="{y - 7:.0f}" height="14" fill="{COLORS[0]}" '
            f'width="{max(share * width, 1):.1f}"><title>{escape(name)}: {share:.4f}</title></rect>'
            f'<text x="{left + share * width + 6:.0f}" y="{y:.0f}" dy="0.35em">'
            f"{100 * share:.1f}%</text>"
        )
    return _svg("bars", _WIDTH, row * len(shares) + 4, parts)


def heat_map(cosines: Cosines) -> str:
    """Draw cosines between tasks: red pairs conflict, blue pairs agree."""
    names, m = cosines.names, len(cosines.names)
    cell = max(min(64, 420 // m), 8)
    longest = max(len(_short(name)) for name in names)
    left, below = 14 + 6.6 * longest, 14 + 4.8 * longest
    parts = []
    for i, row in enumerate(cosines.matrix):
        y = i * cell
        if cell >= 12:
            parts.append(_name(names[i], left - 6, y + cell / 2, 0))
            parts.append(_name(names[i], left + (i + 0.6) * cell, m * cell + 12, -40))
        for j, value in enumerate(row):
            x = left + j * cell
            shown = "never together" if value is None else f"{value:.3f}"
            parts.append(
                f'<rect class="cell" x="{x:.0f}" y="{y}" width="{cell}" height="{cell}" '
                f'fill="{_shade(value)}">'
                f"<title>{escape(names[i])}, {escape(names[j])}: {shown}</title></rect>"
            )
            if value is not None and m <= _LARGEST_WITH_NUMBERS:
                ink = "#fff" if abs(value) > 0.45 else "#222"
                parts.append(
                    f'<text x="{x + cell / 2:.0f}" y="{y + cell / 2:.0f}" dy="0.35em" '
                    f'text-anchor="middle" style="fill:{ink}">{round(value, 2) + 0.0:.2f}</text>'
                )
    return _svg("heat", round(left + m * cell + 2), round(m * cell + below), parts)


def _name(name: str, x: float, y: float, angle: int) -> str:
    turned = f' transform="rotate({angle} {x:.0f} {y:.0f})"' if angle else ""
    place = f'x="{x:.0f}" y="{y:.0f}" dy="0.35em" text-anchor="end"{turned}'
    return f'<text class="name" {place}>{escape(_short(name))}</text>'


Points = list[tuple[float, float, float]]


def _coincide(line: Points, other: Points, axis: _Axis) -> bool:
    """Whether two lines are so close at nearly all steps that one would hide the other."""
    where = {x: axis.fraction(mean) for x, mean, _ in other}
    gaps = [abs(axis.fraction(mean) - where[x]) for x, mean, _ in line if x in where]
    return bool(gaps) and sorted(gaps)[int(0.9 * (len(gaps) - 1))] < 0.01


def _hover(points: Mapping[str, Points], last: float) -> str:
    """Invisible columns whose titles tell the values: browsers show them without a script."""
    steps = sorted({x for line in points.values() for x, _, _ in line})
    known = {name: {x: mean for x, mean, _ in line} for name, line in points.items()}
    parts = []
    for i, x in enumerate(steps):
        begin = (steps[i - 1] + x) / 2 if i else 0.0
        end = (x + steps[i + 1]) / 2 if i + 1 < len(steps) else last
        left, right = (_LEFT + at / last * (_WIDTH - _LEFT - _RIGHT) for at in (begin, end))
        values = [f"{name}: {line[x]:.4g}" for name, line in known.items() if x in line]
        parts.append(
            f'<rect class="hover" x="{left:.1f}" y="{_TOP}" width="{max(right - left, 2):.1f}" '
            f'height="{_HEIGHT - _TOP - _BOTTOM}">'
            f"<title>{escape(chr(10).join([f'step {x:.6g}', *values]))}</title></rect>"
        )
    return "".join(parts)


class _Axis:
    """A linear or logarithmic scale with round ticks."""

    def __init__(self, low: float, high: float, log: bool) -> None:
        self.log = log
        if log:
            first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
            self._low, self._high = float(first), float(last)
            stride = math.ceil((last - first) / 6)
            self.ticks = [10.0**exponent for exponent in range(first, last + 1, stride)]
            return
        if high - low <= 1e-12 * max(abs(low), abs(high), 1e-300):  # a constant curve
            low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
        step = _round_up((high - low) / 5)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        self._low, self._high = first * step, last * step
        self.ticks = [k * step for k in range(first, last + 1)]

    def fraction(self, value: float) -> float:
        """Where a value is between bottom (0) and top (1)."""
        if self.log:
            value = math.log10(max(value, 10.0**self._low))
        return min(max((value - self._low) / (self._high - self._low), 0.0), 1.0)


def _round_up(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(f * power for f in (1, 2, 2.5, 5, 10) if f * power >= step * (1 - 1e-9))


def _grid(axis: _Axis, last: float) -> str:
    parts = []
    for tick in axis.ticks:
        y = _TOP + (1 - axis.fraction(tick)) * (_HEIGHT - _TOP - _BOTTOM)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick" x="{_LEFT - 7}" y="{y:.1f}" dy="0.35em" text-anchor="end">'
            f"{tick:.4g}</text>"
        )
    step = _round_up(last / 5)
    for k in range(int(last / step) + 1):
        x = _LEFT + k * step / last * (_WIDTH - _LEFT - _RIGHT)
        anchor = "end" if x > _WIDTH - 30 else "middle"
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{_HEIGHT - 16}" text-anchor="{anchor}">'
            f"{k * step:.10g}</text>"
        )
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(
        f'<text class="tick" x="{middle}" y="{_HEIGHT - 2}" text-anchor="middle">step</text>'
    )
    return "".join(parts)


def _legend(names: Sequence[str]) -> str:
    items = "".join(
        f'<li><i style="background:{COLORS[index % len(COLORS)]}"></i>{escape(name)}</li>'
        for index, name in enumerate(names)
    )
    return f'<ul class="legend">{items}</ul>'


def _svg(kind: str, width: int, height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg class="{kind}" viewBox="0 0 {width} {height}" style="max-width:{width}px" '
        f'role="img" xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )


def _shade(cosine: float | None) -> str:
    """White at 0, blue at 1, red at -1, a light grey for what is unknown."""
    if cosine is None:
        return "#dddddd"
    end = (5, 48, 97) if cosine > 0 else (103, 0, 31)
    mid = (67, 147, 195) if cosine > 0 else (214, 96, 77)
    size = min(abs(cosine), 1.0)
    white = (247, 247, 247)
    start, stop, share = (white, mid, 2 * size) if size < 0.5 else (mid, end, 2 * size - 1)
    mixed = (round(a + (b - a) * share) for a, b in zip(start, stop, strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def _short(name: str) -> str:
    return name if len(name) <= 24 else name[:23] + "…"

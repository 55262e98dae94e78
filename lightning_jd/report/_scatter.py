"""Points of two objectives with their errors, as inline SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from lightning_jd.report._svg import COLORS, _Axis, _legend, _svg

_SIZE, _LEFT, _RIGHT, _TOP, _BOTTOM = 440, 64, 30, 12, 46


class Point(NamedTuple):
    """A point with its standard errors, and what a browser shows when one points at it."""

    x: float
    y: float
    x_error: float = 0.0
    y_error: float = 0.0
    label: str = ""


def scatter_chart(
    series: Mapping[str, Sequence[Point]], corners: Sequence[Point], x_name: str, y_name: str
) -> str:
    """Draw one coloured line of points for each name, and the corners as squares.

    Args:
        series: Name to its points, in the order of their line.
        corners: Points of their own; their labels are drawn.
        x_name: The horizontal axis.
        y_name: The vertical axis.
    """
    points = [*corners, *(point for line in series.values() for point in line)]
    if not points:
        return ""
    x_axis = _Axis(
        min(p.x - p.x_error for p in points), max(p.x + p.x_error for p in points), False
    )
    y_axis = _Axis(
        min(p.y - p.y_error for p in points), max(p.y + p.y_error for p in points), False
    )

    def place(x: float, y: float) -> tuple[float, float]:
        right = _LEFT + x_axis.fraction(x) * (_SIZE - _LEFT - _RIGHT)
        return right, _TOP + (1 - y_axis.fraction(y)) * (_SIZE - _TOP - _BOTTOM)

    parts = _grid(x_axis, y_axis, x_name, y_name)
    for index, line in enumerate(series.values()):
        color = COLORS[index % len(COLORS)]
        places = " ".join("{:.1f},{:.1f}".format(*place(p.x, p.y)) for p in line)
        parts.append(f'<polyline class="line thin" stroke="{color}" points="{places}"/>')
        for p in line:
            x, y = place(p.x, p.y)
            (left, low), (right, high) = (
                place(p.x - p.x_error, p.y - p.y_error),
                place(p.x + p.x_error, p.y + p.y_error),
            )
            parts.append(
                f'<path stroke="{color}" d="M{left:.1f} {y:.1f}H{right:.1f}M{x:.1f} {low:.1f}'
                f'V{high:.1f}"/><circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{color}">'
                f"<title>{_hover(p, x_name, y_name)}</title></circle>"
            )
    for p in corners:
        x, y = place(p.x, p.y)
        inner = "end" if x > _SIZE / 2 else "start"
        parts.append(
            f'<rect class="corner" x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8">'
            f"<title>{_hover(p, x_name, y_name)}</title></rect>"
            f'<text class="name" x="{x + (-9 if inner == "end" else 9):.1f}" y="{y:.1f}" '
            f'dy="0.35em" text-anchor="{inner}">{escape(p.label)}</text>'
        )
    return _svg("scatter", _SIZE, _SIZE, parts) + _legend(list(series))


def _hover(point: Point, x_name: str, y_name: str) -> str:
    lines = [point.label, f"{x_name}: {point.x:.4g}", f"{y_name}: {point.y:.4g}"]
    return escape("\n".join(lines))


def _grid(x_axis: _Axis, y_axis: _Axis, x_name: str, y_name: str) -> list[str]:
    bottom, right = _SIZE - _BOTTOM, _SIZE - _RIGHT
    parts = []
    for tick in x_axis.ticks:
        x = _LEFT + x_axis.fraction(tick) * (right - _LEFT)
        parts.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/><text '
            f'class="tick" x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{tick:.4g}</text>'
        )
    for tick in y_axis.ticks:
        y = _TOP + (1 - y_axis.fraction(tick)) * (bottom - _TOP)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/><text '
            f'class="tick" x="{_LEFT - 7}" y="{y:.1f}" dy="0.35em" text-anchor="end">'
            f"{tick:.4g}</text>"
        )
    middle = (_TOP + bottom) / 2
    parts.append(
        f'<text class="name" x="{(_LEFT + right) / 2:.0f}" y="{_SIZE - 8}" text-anchor="middle">'
        f'{escape(x_name)}</text><text class="name" x="14" y="{middle:.0f}" text-anchor="middle" '
        f'transform="rotate(-90 14 {middle:.0f})">{escape(y_name)}</text>'
    )
    return parts

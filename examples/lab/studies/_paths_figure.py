"""The figure of ``trajectories``: parameters above, values below."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from examples.lab.figure import new_figure, save_figure
from examples.lab.studies._quadratics import Quadratics, distance_to_curve

_RESOLUTION = 80
_COLUMNS = 4
#: Colours: of the angle between the gradients, of the distance to the front, of the way along a
#: path (from red to yellow, as in the paper).
_ANGLES, _DISTANCES, _TIME = "PiYG", "Blues", "autumn"
_START, _FAINT = "tab:blue", 0.45


def draw_paths(function: Quadratics, paths: Mapping[str, Tensor], path: Path) -> Path:
    """Draw the paths of all methods, parameters above values, four methods side by side.

    The background of a parameter plane is the cosine of the two gradients, from pink (opposed) to
    green (aligned); that of a value plane is the distance to the Pareto front.

    Args:
        function: The objectives.
        paths: Method to points, shape (starts, steps + 1, 2).
        path: The PNG file to write.
    """
    columns = min(len(paths), _COLUMNS)
    blocks = -(-len(paths) // columns)
    title = f"Trajectories on the {function.title}: parameters (above), values (below)"
    figure = new_figure(max(5.2, 2.6 * columns), 4.6 * blocks + 0.8, title)
    panels = figure.subplots(2 * blocks, columns, squeeze=False)
    for axes in panels.flat:
        axes.set_axis_off()
    curve = function.pareto_set()
    limits = _limits(torch.cat([*(points.reshape(-1, 2) for points in paths.values()), curve]))
    values = {name: function.values(points) for name, points in paths.items()}
    # Steps that overshoot would make everything else small: what the starts span is shown.
    starts = torch.cat([points[:, 0] for points in values.values()])
    tops = (1.1 * starts.amax(dim=0)).tolist()
    value_limits = [(-0.05 * tops[0], tops[0]), (-0.05 * tops[1], tops[1])]
    cosines = _cosine_background(function, limits)
    distances = _distance_background(function, value_limits)
    for number, (name, points) in enumerate(paths.items()):
        block, column = divmod(number, columns)
        above, below = panels[2 * block][column], panels[2 * block + 1][column]
        above.set_title(name)
        _draw_plane(above, cosines, limits, _ANGLES, (-1, 1))
        _draw_plane(below, distances, value_limits, _DISTANCES, (0, float(distances.max())))
        _draw_lines(above, points, curve)
        _draw_lines(below, values[name], function.values(curve))
        _name_axes(above, "x", left=column == 0)
        _name_axes(below, "f", left=column == 0)
    keys = _keys(_is_point(curve), cosines, late=_is_late_seen(paths.values(), limits))
    figure.legend(handles=keys, loc="outside lower center", ncols=4)
    return save_figure(figure, path, dpi=100)


def _name_axes(axes: Any, letter: str, *, left: bool) -> None:
    """Call the axes by the coordinates of the plane, the upright one in the first column only."""
    axes.set_xlabel(f"${letter}_1$", labelpad=1)
    if left:
        axes.set_ylabel(f"${letter}_2$", labelpad=1)


def _keys(is_point: bool, cosines: Tensor, late: bool) -> list[Any]:
    """What lines, marks and backgrounds mean: only of what there is."""
    from matplotlib import colormaps
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    optimal = {"marker": "*", "linestyle": "", "markersize": 9} if is_point else {"linewidth": 2}
    keys: list[Any] = [
        Line2D([], [], marker="o", linestyle="", color=_START, markersize=4, label="start"),
        Line2D([], [], color=colormaps[_TIME](0.0), label="first steps" if late else "path"),
    ]
    if late:
        keys.append(Line2D([], [], color=colormaps[_TIME](1.0), label="last steps"))
    keys.append(Line2D([], [], color="black", label="Pareto set (above), front (below)", **optimal))
    for shade, label, occurs in (
        (0.0, "gradients opposed", cosines.min() < -0.1),
        (0.5, "at a right angle", cosines.abs().min() < 0.1 < cosines.abs().max()),
        (1.0, "gradients aligned", cosines.max() > 0.1),
    ):
        if occurs:
            keys.append(Patch(color=colormaps[_ANGLES](shade), alpha=_FAINT, label=label))
    far = Patch(color=colormaps[_DISTANCES](1.0), alpha=_FAINT, label="far from the Pareto front")
    return [*keys, far]


def _is_late_seen(paths: Iterable[Tensor], limits: list[tuple[float, float]]) -> bool:
    """Whether the last half of a path is long enough to have a colour in the figure."""
    span = min(high - low for low, high in limits)
    halves = (points[:, points.shape[1] // 2 :] for points in paths)
    return any(float((half[:, 0] - half[:, -1]).norm(dim=1).max()) > 0.02 * span for half in halves)


def _limits(points: Tensor) -> list[tuple[float, float]]:
    low, high = points.amin(dim=0), points.amax(dim=0)
    margin = 0.08 * (high - low)
    return list(zip((low - margin).tolist(), (high + margin).tolist(), strict=True))


def _grid(limits: list[tuple[float, float]]) -> Tensor:
    axes = [torch.linspace(low, high, _RESOLUTION, dtype=torch.float64) for low, high in limits]
    return torch.stack(torch.meshgrid(*axes, indexing="xy"), dim=-1)  # (rows, columns, 2)


def _cosine_background(function: Quadratics, limits: list[tuple[float, float]]) -> Tensor:
    J = function.jacobian(_grid(limits))
    return torch.nn.functional.cosine_similarity(J[..., 0, :], J[..., 1, :], dim=-1)


def _distance_background(function: Quadratics, limits: list[tuple[float, float]]) -> Tensor:
    front = function.values(function.pareto_set())[::20]
    return distance_to_curve(_grid(limits), front)


def _draw_plane(
    axes: Any,
    heights: Tensor,
    limits: list[tuple[float, float]],
    colours: str,
    span: tuple[float, float],
) -> None:
    axes.set_axis_on()
    extent = (*limits[0], *limits[1])
    axes.imshow(
        heights.numpy(),
        extent=extent,
        origin="lower",
        aspect="auto",
        cmap=colours,
        vmin=span[0],
        vmax=span[1],
        alpha=_FAINT,
    )
    axes.set(xlim=limits[0], ylim=limits[1])
    axes.tick_params(labelsize="small")


def _is_point(curve: Tensor) -> bool:
    return bool((curve - curve[0]).norm(dim=1).max() < 1e-9)


def _draw_lines(axes: Any, lines: Tensor, curve: Tensor) -> None:
    from matplotlib import colormaps
    from matplotlib.collections import LineCollection

    is_point = _is_point(curve)
    if not is_point:
        axes.plot(*curve.T.tolist(), color="black", linewidth=2, zorder=2)
    for line in lines:
        segments = torch.stack([line[:-1], line[1:]], dim=1)
        shades = torch.linspace(0, 1, len(segments))
        colours = colormaps[_TIME](shades.numpy())
        axes.add_collection(
            LineCollection(segments.tolist(), colors=colours, linewidths=1.6, zorder=3)
        )
        axes.plot(*line[0].tolist(), marker="o", color=_START, markersize=4, zorder=4)
    if is_point:
        axes.plot(*curve[0].tolist(), marker="*", color="black", markersize=9, zorder=5)

"""The figure of ``lightning-jd trajectories``: parameters above, values below."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_jd.lab.figure import new_figure, save_figure
from lightning_jd.lab.studies._quadratics import Quadratics, distance_to_curve

_RESOLUTION = 80


def draw_paths(function: Quadratics, paths: Mapping[str, Tensor], path: Path) -> Path:
    """Draw the paths of all methods, one column each, in up to two blocks of rows.

    The background of a parameter plane is the cosine of the two gradients, from pink (opposed) to
    green (aligned); that of a value plane is the distance to the Pareto front.

    Args:
        function: The objectives.
        paths: Method to points, shape (starts, steps + 1, 2).
        path: The PNG file to write.
    """
    columns = -(-len(paths) // 2) if len(paths) > 6 else len(paths)
    blocks = -(-len(paths) // columns)
    title = f"Trajectories on the {function.title}: parameters (above), values (below)"
    figure = new_figure(2.5 * columns, 4.9 * blocks, title)
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
        _draw_plane(above, cosines, limits, "PiYG", (-1, 1))
        _draw_plane(below, distances, value_limits, "Blues", (0, float(distances.max())))
        _draw_lines(above, points, curve)
        _draw_lines(below, values[name], function.values(curve))
    return save_figure(figure, path, dpi=90)


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
        alpha=0.45,
    )
    axes.set(xlim=limits[0], ylim=limits[1])
    axes.tick_params(labelsize="x-small")


def _draw_lines(axes: Any, lines: Tensor, curve: Tensor) -> None:
    from matplotlib import colormaps
    from matplotlib.collections import LineCollection

    is_point = bool((curve - curve[0]).norm(dim=1).max() < 1e-9)
    if not is_point:
        axes.plot(*curve.T.tolist(), color="black", linewidth=2, zorder=2)
    for line in lines:
        segments = torch.stack([line[:-1], line[1:]], dim=1)
        shades = torch.linspace(0, 1, len(segments))
        # From red to yellow, as in the paper.
        colours = colormaps["autumn"](shades.numpy())
        axes.add_collection(
            LineCollection(segments.tolist(), colors=colours, linewidths=1.6, zorder=3)
        )
        axes.plot(*line[0].tolist(), marker="o", color="tab:blue", markersize=4, zorder=4)
    if is_point:
        axes.plot(*curve[0].tolist(), marker="*", color="black", markersize=9, zorder=5)

"""``trajectories``: where each aggregator goes on two quadratic functions."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from examples.lab.console import progress_bar
from examples.lab.device import here, measured_on, name_of_device
from examples.lab.figure import check_matplotlib
from examples.lab.folders import writable_folder
from examples.lab.report import Report, Value
from examples.lab.store import Store
from examples.lab.studies._paths_figure import draw_paths
from examples.lab.studies._quadratics import (
    CONVEX_FORM,
    ELEMENT_WISE,
    Quadratics,
    distance_to_curve,
)
from examples.lab.studies._settings import PAPER_AGGREGATORS, Setting, names_of, settings_of
from lightning_jd.errors import ArgumentError
from lightning_jd.linalg import has_float64


@dataclass(frozen=True)
class Scene:
    """A function, where to start on it, and how to step.

    Args:
        name: For files and tables.
        function: The objectives.
        starts: The starting points.
        lr: The step size.
        steps: How many steps.
    """

    name: str
    function: Quadratics
    starts: Sequence[tuple[float, float]]
    lr: float
    steps: int


SCENES = (
    Scene("ewq", ELEMENT_WISE, ((3.0, -2.0), (0.0, -3.0), (-4.0, 4.0), (1.0, 0.2)), 0.05, 300),
    Scene("cqf", CONVEX_FORM, ((0.0, 0.0), (-2.0, 2.0), (2.0, -2.0), (2.5, 3.0)), 0.05, 1000),
)
_REACHED = 0.1  # distance to the Pareto set, of starts several units away
_NO_UPDATE = 1e-3  # length of an update, relative to the longest gradient
_CONFLICT = 1e-6  # cosine; what is smaller is rounding
_COLUMNS = {
    "function": "function",
    "method": "method",
    "distances": "final distance to the Pareto set, by start",
    "reached": "starts that reach it",
    "stopped": "starts that stop at a weakly stationary point off it",
    "worst_cosine": "worst cosine of update and gradient",
    "rise": "largest rise of a value",
}

_NOTE = (
    "UPGrad and DualProj with reg 0, the definition. Distances in the space of parameters, "
    f"after {' and '.join(str(scene.steps) for scene in SCENES)} steps; {_REACHED} counts as "
    "reached. A negative cosine is a conflict: to first order, the step makes a value worse. "
    "Rise: of a value above its least so far; a step of finite length along the border of the "
    "dual cone lets it rise a little, by the square of the step."
)


def trajectories(
    aggregators: Sequence[str] | str = PAPER_AGGREGATORS,
    seed: int = 0,
    device: str = "cpu",
    output: str = "results/trajectories",
) -> None:
    """Follow the paper's aggregators on its two quadratic functions of the plane.

    On the element-wise quadratic (x1^2, x2^2) gradients never conflict and only the origin is
    optimal, but every point of an axis is weakly stationary: some methods stop there. On the convex
    quadratic form gradients conflict and have different lengths: some methods let a value rise.
    Takes about a minute; what is finished is kept in paths.jsonl and not repeated. Writes a table
    (trajectories.json, trajectories.md), the points (trajectories.csv), and for each function a
    figure of parameters and of values, with the Pareto set, the Pareto front and the distance to
    it.

    Args:
        aggregators: Which to follow, e.g. --aggregators mean, or --aggregators '[mean, upgrad]';
            by default all eleven.
        seed: Of the methods that draw random numbers.
        device: Where the gradients are: "cpu", "cuda", ...; paths of different devices are kept
            apart.
        output: The folder for the results.
    """
    aggregators = names_of(aggregators)
    if not aggregators:
        raise ArgumentError("`aggregators` must not be empty. Leave it out to follow all.")
    check_matplotlib()
    settings = settings_of(aggregators, (0.0,))  # the definition: nothing is regularised
    folder = writable_folder(output)
    store = _stored_paths(folder / "paths.jsonl")
    with measured_on(device):
        rows: list[dict[str, Value]] = []
        paths: dict[str, dict[str, Tensor]] = {}
        with progress_bar(total=len(SCENES) * len(settings)) as start:
            for scene in SCENES:
                paths[scene.name] = {}
                for setting in settings:
                    name = _label(setting)
                    start(f"{scene.name} {name}")
                    found = _followed(store, scene, setting, seed)
                    paths[scene.name][name] = found.points
                    rows.append(_row(scene, name, found))
        title = "Trajectories of Jacobian descent on two quadratic functions"
        report = Report("trajectories", title, _COLUMNS, rows, (_NOTE,))
        written = [
            _write_points(SCENES, paths, folder / "trajectories.csv"),
            *(draw_paths(s.function, paths[s.name], folder / f"{s.name}.png") for s in SCENES),
        ]
        report.publish(folder, *written)


@dataclass(frozen=True)
class Followed:
    """Paths from all starts, and the worst of what happened on the way.

    Args:
        points: Shape (starts, steps + 1, 2).
        worst_cosine: Least cosine between an update and a gradient, of all steps.
    """

    points: Tensor
    worst_cosine: float


def follow(scene: Scene, setting: Setting, seed: int = 0) -> Followed:
    """Take the steps of Jacobian descent from every start of a scene."""
    dtype = torch.float64 if has_float64(here()) else torch.float32
    paths, worst = [], 1.0
    for begin in scene.starts:
        aggregator = setting.built(seed)
        x = torch.tensor(begin, dtype=dtype, device=here())
        function = scene.function.to(x)
        points = [x]
        for _ in range(scene.steps):
            J = function.jacobian(x)
            d = aggregator(J)
            worst = min(worst, _worst_cosine(_on_host(J), _on_host(d)))
            x = x - scene.lr * d
            points.append(x)
        paths.append(torch.stack(points))
    return Followed(_on_host(torch.stack(paths)), worst)


def _on_host(tensor: Tensor) -> Tensor:
    return tensor.cpu().double()


def _stored_paths(path: Path) -> Store[str, Followed]:
    return Store(path, _written, _read)


def _written(what: str, found: Followed) -> Any:
    return {"what": what, "worst_cosine": found.worst_cosine, "points": found.points.tolist()}


def _read(entry: Any) -> tuple[str, Followed]:
    points = torch.tensor(entry["points"], dtype=torch.float64)
    return entry["what"], Followed(points, entry["worst_cosine"])


def _followed(store: Store[str, Followed], scene: Scene, setting: Setting, seed: int) -> Followed:
    """Follow a setting, unless an earlier start of the command has done so."""
    what = f"{scene.name} {setting} from {scene.starts}, {scene.steps} x {scene.lr}, {seed}"
    if here().type != "cpu":  # those of a CPU are stored without it
        what += f", {name_of_device()}"
    if what not in store:
        store.add(what, follow(scene, setting, seed))
    return store[what]


def _worst_cosine(J: Tensor, d: Tensor) -> float:
    norms = J.norm(dim=1)
    if d.norm() <= _NO_UPDATE * norms.max():
        return 0.0  # next to a stationary point the direction is rounding
    lengths = norms * d.norm()
    return float(torch.where(lengths > 0, J @ d / lengths.clamp(min=1e-300), 0.0).min())


def _label(setting: Setting) -> str:
    return setting.label.partition(",")[0].removesuffix(" (SGD)")


def _row(scene: Scene, name: str, found: Followed) -> dict[str, Value]:
    ends = found.points[:, -1]
    distances = distance_to_curve(ends, scene.function.pareto_set())
    off = distances > _REACHED
    still = torch.tensor([_is_weakly_stationary(scene.function.jacobian(end)) for end in ends])
    values = scene.function.values(found.points)
    rises = values - values.cummin(dim=1).values
    return {
        "function": scene.name,
        "method": name,
        "distances": ", ".join(f"{float(distance):.2g}" for distance in distances),
        "reached": int((~off).sum()),
        "stopped": int((off & still).sum()),
        "worst_cosine": found.worst_cosine if found.worst_cosine < -_CONFLICT else 0.0,
        "rise": float(rises.max()),
    }


def _is_weakly_stationary(J: Tensor) -> bool:
    """Whether a convex combination of two gradients is (nearly) zero."""
    first, second = J
    difference = first - second
    t = (second @ -difference / difference.square().sum().clamp(min=1e-300)).clamp(0, 1)
    return bool((t * first + (1 - t) * second).norm() < 1e-2)


def _write_points(
    scenes: Sequence[Scene], paths: Mapping[str, Mapping[str, Tensor]], path: Path, every: int = 10
) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["function", "method", "start", "step", "x1", "x2", "f1", "f2", "distance"])
        for scene in scenes:
            curve = scene.function.pareto_set()
            for method, points in paths[scene.name].items():
                few = points[:, ::every]
                numbers = [
                    few,
                    scene.function.values(few),
                    distance_to_curve(few, curve)[..., None],
                ]
                for start, line in enumerate(torch.cat(numbers, dim=-1).tolist()):
                    for step, entries in enumerate(line):
                        shown = [f"{entry:.6g}" for entry in entries]
                        writer.writerow([scene.name, method, start, step * every, *shown])
    return path

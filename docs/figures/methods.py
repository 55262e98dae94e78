"""Draws the picture on the page of every method, by asking the method itself.

Run `python docs/figures/methods.py`, or with names of methods to draw only these.
"""

import math
import sys
from itertools import pairwise
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Polygon
from torch import Tensor

from lightning_jd.aggregators import Aggregator, FromFeatures, Step, available, resolve

FOLDER = Path(__file__).parent / "methods"
GRAY, GREEN, BLUE = "tab:gray", "tab:green", "tab:blue"
STEPS = 40

#: The two gradients of the paper's picture, and the same with the second one shorter.
PAIR = torch.tensor([[-0.75, 0.75], [2.1, 0.25]], dtype=torch.float64)
PAIRS = {"in conflict": PAIR, "the second a third as long": PAIR * torch.tensor([[1.0], [1 / 3]])}
#: Five gradients, the last of which comes from a broken process.
CROWD = torch.tensor(
    [[0.9, 0.5], [1.1, 0.2], [0.8, 0.8], [1.2, 0.6], [-1.6, -0.7]], dtype=torch.float64
)
ARGUMENTS: dict[str, dict[str, object]] = {
    "constant": {"weights": [0.7, 0.3]},
    "krum": {"n_byzantine": 1},
    "trimmedmean": {"trim": 1},
    "normalized": {"aggregator": "upgrad"},
    "weightsevery": {"aggregator": "upgrad", "n": 8},
    "crmogm": {"aggregator": "upgrad"},
}
#: Rows turn from step to step, to show what is remembered.
TURNING = ("crmogm", "weightsevery", "moco", "dbmtl", "mconfig")


def draw(name: str, folder: Path = FOLDER) -> Path:
    """Draw the picture of one method into a folder."""
    if name in available("balancers"):
        figure = over_time(name)
    elif name == "fromfeatures":
        figure = at_features()
    elif name in ("krum", "trimmedmean"):
        figure = Figure(figsize=(4.6, 3.6), layout="constrained")
        plane(figure.subplots(), CROWD, updates(name, CROWD, 1), "four agree, one is broken")
    else:
        figure = Figure(figsize=(9, 3.3), layout="constrained")
        for axes, (title, J) in zip(figure.subplots(1, 2), PAIRS.items(), strict=True):
            plane(axes, J, updates(name, J, STEPS), title)
    path = folder / f"{name}.png"
    folder.mkdir(exist_ok=True)
    figure.savefig(path, dpi=80)
    return path


def updates(name: str, J: Tensor, steps: int) -> list[Tensor]:
    """What the method answers in each of some steps."""
    aggregator = resolve({"name": name, **ARGUMENTS.get(name, {})})
    assert isinstance(aggregator, Aggregator)
    names = tuple(map(str, range(len(J))))
    found = []
    for t in range(steps):
        rows = turned(J, 0.25 * math.sin(0.4 * t)) if name in TURNING else J
        values = torch.ones(len(J))
        values[-1] = 0.9**t if name == "gradnorm" else 1.0  # which goes by how fast losses fall
        asked = aggregator.turn()
        if isinstance(asked, Aggregator):
            found.append(asked.combine(rows, Step(names, values)))
        else:  # the weights are known already
            found.append(asked.weigh(Step(names, values)).double() @ rows)
    return found


def turned(J: Tensor, angle: float) -> Tensor:
    """The rows, turned against each other."""
    c, s = math.cos(angle), math.sin(angle)
    turn = torch.tensor([[c, s], [-s, c]], dtype=J.dtype)
    return torch.cat([J[:1] @ turn, J[1:]])


def plane(axes: Axes, J: Tensor, found: list[Tensor], title: str) -> None:
    """Gradients, the updates that harm none of them, the mean, and the updates of a method."""
    cone(axes, J)
    for i, row in enumerate(J):
        arrow(axes, row, BLUE, f"$g_{i + 1}$")
    arrow(axes, J.mean(dim=0), GRAY, "mean", below=True)
    different = [found[0]] + [b for a, b in pairwise(found) if (a - b).norm() > 1e-3]
    shades = colormaps["Greens"](torch.linspace(0.35, 0.9, len(different)).numpy())
    for update, shade in zip(different, shades, strict=True):
        is_last = update is different[-1]
        arrow(
            axes,
            update,
            GREEN if len(different) == 1 else shade,
            "update" if is_last else "",
            thin=not is_last,
        )
    if len(different) > 1:
        title += f", {len(found)} steps, light to dark"
    ends = torch.stack([*J, *found, torch.zeros(2, dtype=J.dtype)])
    low, high = ends.min(dim=0).values, ends.max(dim=0).values
    margin = 0.12 * (high - low).max()
    axes.set_xlim(float(low[0] - margin), float(high[0] + 2 * margin))
    axes.set_ylim(float(low[1] - margin), float(high[1] + 2 * margin))
    axes.set_aspect("equal")
    axes.set_title(title, fontsize="medium")
    axes.axis("off")


def cone(axes: Axes, J: Tensor) -> None:
    """Shade the directions that have no negative inner product with a row."""
    angles = torch.linspace(0, 2 * math.pi, 1441, dtype=J.dtype)
    around = torch.stack([angles.cos(), angles.sin()], dim=1)
    inside = around[((around @ J.T) >= 0).all(dim=1)]
    if len(inside) < 2:
        return
    # From the middle of the cone, so that it is not cut where angles begin.
    middle = inside.mean(dim=0)
    across = torch.stack([-middle[1], middle[0]])
    inside = inside[(inside @ across).argsort()]
    corners = [(0.0, 0.0), *(20 * inside[[0, len(inside) // 2, -1]]).tolist()]
    axes.add_patch(Polygon(corners, color=GREEN, alpha=0.13, linewidth=0))


def arrow(
    axes: Axes, end: Tensor, colour: object, label: str, *, thin: bool = False, below: bool = False
) -> None:
    """An arrow from the origin, with its name at its end."""
    x, y = end.tolist()
    style = {
        "arrowstyle": "-|>",
        "color": colour,
        "lw": 1 if thin else 2,
        "shrinkA": 0,
        "shrinkB": 0,
    }
    axes.annotate("", (x, y), (0, 0), arrowprops=style)
    if label:
        axes.annotate(
            label,
            (x, y),
            (5, -9 if below else 5),
            textcoords="offset points",
            color=colour,
            weight="bold",
        )


def at_features() -> Figure:
    """Gradients at the features and at the parameters, which the trunk bends."""
    figure = Figure(figsize=(9, 3.3), layout="constrained")
    trunk = torch.tensor([[1.0, 0.5], [0.0, 0.6]], dtype=torch.float64)
    method = FromFeatures("upgrad")
    weights = method.weights(PAIR @ PAIR.T)
    J = PAIR @ trunk
    left, right = figure.subplots(1, 2)
    plane(left, PAIR, [weights @ PAIR], "at the features, which decide")
    plane(right, J, [weights @ J], "at the parameters")
    arrow(right, method.aggregator(J), "tab:red", "exact", thin=True)
    return figure


def over_time(name: str) -> Figure:
    """Three losses that fall at different rates, and the weights that a balancer gives them."""
    figure = Figure(figsize=(9, 3.0), layout="constrained")
    t = torch.arange(400.0)
    losses = torch.stack([2.0 * (-t / 40).exp() + 0.05, (-t / 300).exp(), 0.4 - 0.0004 * t], dim=1)
    balancer = resolve({"name": name} | ({"lr": 0.02} if name in ("uw", "imtll") else {}))
    weights = []
    for step, values in enumerate(losses):
        weights.append(balancer.weights(values))  # type: ignore[operator]  # it is a balancer
        if step % 20 == 19:
            balancer.end_epoch()
    panels = {"losses": losses, f"weights of {balancer.label}": torch.stack(weights)}
    for axes, (title, curves) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        for i, (curve, colour) in enumerate(
            zip(curves.T, (BLUE, "tab:orange", GREEN), strict=True)
        ):
            axes.plot(
                t, curve, color=colour, label=f"$\\ell_{i + 1}$", lw=1 if name == "rlw" else 2
            )
        axes.set(title=title, xlabel="step", ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    return figure


if __name__ == "__main__":
    for chosen in sys.argv[1:] or list(available()):
        print(draw(chosen))

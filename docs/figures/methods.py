"""Draws what methods do with two gradients in conflict, by asking the methods.

Run `python docs/figures/methods.py`. All panels of a figure have one scale.
"""

import math
from pathlib import Path

import torch
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Polygon
from torch import Tensor

from lightning_jd.aggregators import Aggregator, FromFeatures, available, resolve

FOLDER = Path(__file__).parent
rcParams["svg.hashsalt"] = "docs"  # so that equal figures are equal files
GRAY, GREEN, BLUE, RED, ORANGE = "#7f7f7f", "#2ca02c", "#1f77b4", "#d62728", "#ff7f0e"
#: The two gradients of the paper's picture.
PAIR = torch.tensor([[-0.75, 0.75], [2.1, 0.25]], dtype=torch.float64)
#: Without state, from the plain sum to random draws.
SHOWN = (
    "mean sum upgrad dualproj pcgrad gradvac cagrad mgda "
    "nashmtl fairgrad imtlg config alignedmtl primary graddrop rgw"
).split()
DRAWS = {"rgw": 4, "graddrop": 8}


def updates(name: str, J: Tensor) -> list[Tensor]:
    torch.manual_seed(0)
    aggregator = resolve(name)
    assert isinstance(aggregator, Aggregator)
    return [aggregator(J) for _ in range(DRAWS.get(name, 1))]


def methods() -> Figure:
    """A panel for each method, all at one scale."""
    figure = Figure(figsize=(9, 8.6), layout="constrained")
    for axes, name in zip(figure.subplots(4, 4).flat, SHOWN, strict=True):
        plane(axes, PAIR)
        for update in updates(name, PAIR):
            arrow(axes, update, GREEN)
        title = available()[name].__name__
        axes.set_title(f"{title}, several draws" if name in DRAWS else title, fontsize=11)
    return figure


def upgrad() -> Figure:
    """UPGrad and the mean, for two lengths of the second gradient."""
    figure = Figure(figsize=(9, 3.1), layout="constrained")
    shorter = PAIR * torch.tensor([[1.0], [1 / 3]])
    titles = {"the second gradient is longer": PAIR, "the same, a third as long": shorter}
    for axes, (title, J) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        plane(axes, J, names=True)
        mean, (update,) = J.mean(dim=0), updates("upgrad", J)
        arrow(axes, mean, GRAY, "mean", (4, -12) if mean[0] > update[0] else (-14, -52))
        arrow(axes, update, GREEN, "UPGrad", (-14, 5))
        axes.set_title(title, fontsize=11)
    return figure


def fromfeatures() -> Figure:
    """Gradients at the features and at the parameters, which the trunk bends."""
    figure = Figure(figsize=(9, 3.1), layout="constrained")
    trunk = torch.tensor([[1.0, 0.5], [0.0, 0.6]], dtype=torch.float64)
    method = FromFeatures("upgrad")
    weights = method.weights(PAIR @ PAIR.T)
    titles = {"at the features, which decide": PAIR, "at the parameters": PAIR @ trunk}
    for axes, (title, J) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        plane(axes, J, names=True)
        arrow(axes, weights @ J, GREEN, "update", (6, 0))
        axes.set_title(title, fontsize=11)
    arrow(axes, method.aggregator(J), RED, "exact", (-40, 0))
    return figure


def balancers() -> Figure:
    """Three losses that fall at different rates, and the weights that balancers give them."""
    figure = Figure(figsize=(9, 8.0), layout="constrained")
    panels = list(figure.subplots(3, 5, sharex=True).flat)
    t = torch.arange(400.0)
    losses = torch.stack([2.0 * (-t / 40).exp() + 0.05, (-t / 300).exp(), 0.4 - 0.0004 * t], dim=1)
    curves_of = {"the losses": losses}
    for name, cls in available("balancers").items():
        torch.manual_seed(0)
        balancer = resolve({"name": name} | ({"lr": 0.02} if name in ("uw", "imtll") else {}))
        weights = []
        for step, values in enumerate(losses):
            weights.append(balancer.weights(values))  # type: ignore[operator]  # it is a balancer
            if step % 20 == 19:
                balancer.end_epoch()
        relative = torch.stack(weights)
        curves_of[cls.__name__] = relative / relative.abs().sum(dim=1, keepdim=True)
    for axes, (title, curves) in zip(panels, curves_of.items(), strict=True):
        for i, (curve, colour) in enumerate(zip(curves.T, (BLUE, ORANGE, GREEN), strict=True)):
            is_noisy = title == "RLW"
            axes.plot(t, curve, color=colour, label=f"task {i + 1}", lw=0.4 if is_noisy else 2)
        axes.set_title(title, fontsize=11)
        if bool((curves >= 0).all()):  # PBI and COSMOS also have negative weights
            axes.set_ylim(0, 2.1 if title == "the losses" else 1)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False, fontsize=9)
    for axes in panels[10:]:
        axes.set_xlabel("step")
    return figure


def plane(axes: Axes, J: Tensor, names: bool = False) -> None:
    """Two gradients, and the updates that harm neither (shaded)."""
    rays = torch.stack([torch.stack([J[0, 1], -J[0, 0]]), torch.stack([-J[1, 1], J[1, 0]])])
    rays = 20 * rays / rays.norm(dim=1, keepdim=True)
    corners = torch.stack([rays[0], rays.sum(dim=0), rays[1]])  # the sum: no chord cuts the view
    axes.add_patch(Polygon([(0, 0), *corners.tolist()], color=GREEN, alpha=0.13, linewidth=0))
    for i, row in enumerate(J):
        arrow(axes, row, BLUE, f"$g_{i + 1}$" if names else "", (4, 4))
    axes.set(xlim=(-1.0, 2.5), ylim=(-0.3, 2.15), aspect="equal")
    axes.axis("off")


def arrow(
    axes: Axes, end: Tensor, colour: str, label: str = "", offset: tuple[int, int] = (0, 0)
) -> None:
    """An arrow from the origin, with its name at its end."""
    at = (float(end[0]), float(end[1]))
    style = {"arrowstyle": "-|>", "color": colour, "lw": 2, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", at, (0, 0), arrowprops=style)
    assert all(map(math.isfinite, at))
    axes.annotate(label, at, offset, textcoords="offset points", color=colour, weight="bold")


if __name__ == "__main__":
    for draw in (methods, upgrad, fromfeatures, balancers):
        path = FOLDER / f"methods_{draw.__name__}.svg".replace("methods_methods", "methods")
        draw().savefig(path, transparent=True, metadata={"Date": None})
        print(path)

"""Draws the picture at the top of the README from saved results: geometry, training, cost.

Run `python examples/digits.py --save digits.json` and `python -m examples.lab bench engines` first:
    python docs/figures/overview.py digits.json results/engines.json
"""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Polygon

from lightning_jd.aggregators import Mean, UPGrad

GRAY, GREEN, BLUE, RED = "tab:gray", "tab:green", "tab:blue", "tab:red"


def geometry(axis: Axes) -> None:
    """Two conflicting gradients, the cone of updates that harm neither, the mean and UPGrad."""
    J = torch.tensor([[-0.75, 0.75], [2.1, 0.25]], dtype=torch.float64)
    rays = torch.stack([torch.stack([J[0, 1], -J[0, 0]]), torch.stack([-J[1, 1], J[1, 0]])])
    rays = 4 * rays / rays.norm(dim=1, keepdim=True)
    axis.add_patch(Polygon([(0, 0), *rays.tolist()], color=GREEN, alpha=0.13, linewidth=0))
    axis.text(0.62, 1.32, "updates that\nharm nobody", color=GREEN, ha="center", fontsize=9)
    arrows = {
        "$g_1$": (J[0], BLUE),
        "$g_2$": (J[1], BLUE),
        "mean": (Mean()(J), GRAY),
        "UPGrad": (UPGrad(reg=0)(J), GREEN),
    }
    for label, (vector, color) in arrows.items():
        x, y = vector.tolist()
        axis.annotate("", (x, y), (0, 0), arrowprops={"arrowstyle": "-|>", "color": color, "lw": 2})
        axis.annotate(label, (x, y), (4, 4), textcoords="offset points", color=color, weight="bold")
    axis.set(xlim=(-0.9, 2.3), ylim=(-0.25, 1.75), aspect="equal", title="What it does")
    axis.axis("off")


def training(axis: Axes, file: Path) -> None:
    """What examples/digits.py measures: how much damage the updates do."""
    for method, run in json.loads(file.read_text()).items():
        color = {"mean": GRAY, "upgrad": GREEN}[method]
        damage = 100 * torch.tensor(run["damage"]).unfold(0, 32, 1).mean(dim=1)
        axis.plot(damage, color=color, lw=2, label={"mean": "mean", "upgrad": "UPGrad"}[method])
    axis.set(xlabel="step", ylabel="increases / decreases of losses, %", ylim=0)
    axis.set_title("Damage done to single examples (digits)")
    axis.legend(frameon=False)
    axis.grid(alpha=0.3)


CASES = {
    "cifar10-upgrad": "CIFAR-10 CNN\nUPGrad, batch 32",
    "mlp-256": "MLP\nbatch 256",
    "transformer": "transformer\nbatch 32",
    "mlp-8-tasks": "MLP\n8 tasks",
    "mlp-40-tasks": "MLP\n40 tasks",
}


def cost(axis: Axes, file: Path) -> None:
    """Cost of a step as a multiple of plain SGD, ours and that of TorchJD's faster engine."""
    rows = {row["case"]: row for row in json.loads(file.read_text())["rows"]}
    rows = {label: rows[case] for case, label in CASES.items()}
    theirs = [min(row["autogram"], row["autojac"]) for row in rows.values()]
    ours = [row["ours"] for row in rows.values()]
    positions = torch.arange(len(rows))
    for values, offset, color, label in (
        (ours, -0.2, GREEN, "lightning_jd"),
        (theirs, 0.2, GRAY, "TorchJD"),
    ):
        axis.barh(positions + offset, values, 0.4, color=color, label=label)
        for y, value in enumerate(values):
            axis.text(
                value * 1.06,
                y + offset,
                f"{value:.1f}x" if value < 10 else f"{value:.0f}x",
                va="center",
                fontsize=8,
            )
    axis.axvline(1, color="black", lw=1, ls=":")
    axis.set(xscale="log", xlim=(0.5, 3 * max(theirs)))
    axis.set_yticks(positions, list(rows), fontsize=8)
    axis.set(xlabel="cost of a step / plain SGD", title="What it costs")
    axis.invert_yaxis()
    axis.legend(frameon=False, loc="upper right")


def main(digits: str, engines: str) -> None:
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.6), layout="constrained")
    geometry(axes[0])
    training(axes[1], Path(digits))
    cost(axes[2], Path(engines))
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=130)


if __name__ == "__main__":
    main(*sys.argv[1:])

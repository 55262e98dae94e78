"""Draws what weights from features lose: loss curves and cosines on scikit-learn's digits.

Run `python docs/figures/features.py`; it trains for a minute or two and prints the numbers of the page.
"""

import statistics
from collections.abc import Iterator
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from lightning_jd import backward
from lightning_jd.aggregators import UPGrad

METHODS = {
    "mean": ("mean", "parameters"),
    "UPGrad": ("upgrad", "parameters"),
    "UPGrad from features": ("upgrad", "features"),
}
COLOURS = {"mean": "tab:gray", "UPGrad": "tab:green", "UPGrad from features": "tab:blue"}
TASKS = ("digit", "parity", "five or more", "image")
RATES, SEEDS, EPOCHS, BATCH = (0.3, 0.6), 3, 15, 64  # larger rates are not stable


class Digits(nn.Module):
    """A trunk 64-128-64 and four heads: the digit, two questions about it, and the image."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.trunk = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.heads = nn.ModuleList(nn.Linear(64, outputs) for outputs in (10, 2, 2, 64))

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The loss of each task."""
        features = self.trunk(x)
        digit, odd, large, image = (head(features) for head in self.heads)
        losses = (
            functional.cross_entropy(digit, y),
            functional.cross_entropy(odd, y % 2),
            functional.cross_entropy(large, (y >= 5).long()),
            functional.mse_loss(image, x),
        )
        return dict(zip(TASKS, losses, strict=True))


def batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Images and digits, in a new order in each epoch."""
    images, digits = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(digits)
    order = torch.Generator().manual_seed(seed)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(y), generator=order).split(BATCH):
            yield x[chosen], y[chosen]


def train(method: str, lr: float, seed: int) -> tuple[Tensor, list[float]]:
    """The losses of all steps, (steps, tasks), and cosines of the two updates of the trunk."""
    aggregator, weights_from = METHODS[method]
    model, losses, cosines = Digits(seed), [], []
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for x, y in batches(seed):
        if method == "UPGrad":
            cosines.append(cosine(model, x, y))
        optimizer.zero_grad()
        found = model(x, y)
        losses.append([loss.item() for loss in found.values()])
        backward(found, model, aggregator, weights_from=weights_from)
        optimizer.step()
    return torch.tensor(losses), cosines


def cosine(model: Digits, x: Tensor, y: Tensor) -> float:
    """Between the updates of the trunk by UPGrad, and by UPGrad from features."""
    updates = []
    for weights_from in ("parameters", "features"):
        model.zero_grad()
        backward(model(x, y), model, UPGrad(), weights_from=weights_from)
        updates.append(torch.cat([p.grad.flatten() for p in model.trunk.parameters()]))
    return float(functional.cosine_similarity(*updates, dim=0))


def main() -> None:
    """Train, print and draw."""
    figure = Figure(figsize=(13, 3.2), layout="constrained")
    panels = figure.subplots(1, len(TASKS) + 1)
    for method in METHODS:
        areas, runs = {}, {}
        for lr in RATES:
            runs[lr] = [train(method, lr, seed) for seed in range(SEEDS)]
            curves = torch.stack([losses for losses, _ in runs[lr]])
            # The mean over steps, each task on the scale of its first loss.
            areas[lr] = float((curves.mean((0, 1)) / curves[:, 0].mean(0)).nan_to_num(1e9).mean())
        lr = min(areas, key=lambda rate: areas[rate])
        curves = torch.stack([losses for losses, _ in runs[lr]])
        means = ", ".join(f"{t} {v:.3f}" for t, v in zip(TASKS, curves.mean((0, 1)), strict=True))
        ends = ", ".join(f"{v:.4f}" for v in curves[:, -29:].mean((0, 1)))
        print(f"{method}: lr {lr}; mean losses {means}; last epoch {ends}")
        for axes, curve, task in zip(panels, curves.mean(0).T, TASKS, strict=False):
            axes.plot(curve.unfold(0, 29, 1).mean(1), color=COLOURS[method], label=method)
            axes.set(title=task, xlabel="step", yscale="log")
            axes.grid(alpha=0.3, which="both")
        if method == "UPGrad":
            cosines = sorted(c for _, some in runs[lr] for c in some)
            low = cosines[len(cosines) // 20]
            print(
                f"cosine: median {statistics.median(cosines):.4f}, 5 % {low:.4f}, {cosines[0]:.3f}"
            )
            panels[-1].hist(cosines, bins=60, color=COLOURS["UPGrad from features"])
            panels[-1].set(title="cosine of updates", yscale="log")
    panels[0].legend(fontsize="small", frameon=False)
    panels[0].set_ylabel("training loss")
    figure.savefig(Path("features.png"), dpi=90)


if __name__ == "__main__":
    main()

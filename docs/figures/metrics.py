"""Draws the figures of docs/metrics.md: four tasks that share a narrow layer, trained by UPGrad.

    python docs/figures/metrics.py

Seconds on a CPU. The metrics are fed by hand here, in plain PyTorch.
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import torch
from torch import Tensor, nn

import lightning_jd
from lightning_jd.metrics import (
    ConflictSummary,
    PairwiseCosine,
    PredictedChange,
    TaskWeights,
    predicted_change,
)

TASKS = {"position": 1.0, "heading": 1.0, "speed": 0.7, "distance": 2.0}  # name to loudness
LEARNING_RATE = 0.1


def main() -> None:
    """Train, look at every step, and save one figure per metric beside this file."""
    torch.manual_seed(0)
    x = torch.randn(512, 16)
    y = torch.tanh(x @ torch.randn(16, len(TASKS)) / 3) * torch.tensor(list(TASKS.values()))
    trunk = nn.Sequential(nn.Linear(16, 3), nn.Tanh(), nn.Linear(3, len(TASKS)))
    optimizer = torch.optim.SGD(trunk.parameters(), lr=LEARNING_RATE)

    def losses(rows: Tensor) -> Tensor:
        return (trunk(x[rows]) - y[rows]).square().mean(dim=0)

    metrics = {
        "history": ConflictSummary(),
        "cosines": PairwiseCosine(tuple(TASKS)),
        "weights": TaskWeights(tuple(TASKS)),
        "change": PredictedChange(tuple(TASKS)),
    }
    for _ in range(20):
        for rows in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            before = losses(rows)
            report = lightning_jd.backward(list(before.unbind()), trunk, "upgrad")
            optimizer.step()
            G, w = report.gramian, report.weights
            metrics["history"].update(G, w)
            metrics["cosines"].update(G)
            metrics["weights"].update(w)
            predicted = predicted_change(G, w, learning_rate=LEARNING_RATE)
            metrics["change"].update(predicted, before, losses(rows))
    for name, metric in metrics.items():
        figure, _ = metric.plot()
        figure.savefig(Path(__file__).parent / f"metrics_{name}.png", dpi=90)


if __name__ == "__main__":
    main()

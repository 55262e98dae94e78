"""One training run of the paper's protocol: instance-wise losses, plain SGD, a constant rate."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lightning_jd.aggregators import resolve
from lightning_jd.core import backward
from lightning_jd.errors import NonFiniteError
from lightning_jd.experiments._statistics import power_of_ten
from lightning_jd.experiments.models import Architecture, paper_cnn

_DIVERGED = 1e3  # a cross-entropy that no training of ten classes comes back from


@dataclass(frozen=True)
class Run:
    """Everything that decides the outcome of a training run.

    Args:
        dataset: Name of the dataset.
        aggregator: Name of the aggregator.
        reg: Its regularisation; ``None`` if it has none.
        lr: The learning rate.
        seed: Decides the images, the initial weights and the order of the batches.
        epochs: How often each image is seen.
        size: The number of training images.
        batch: The number of images, hence of objectives, in a step.
    """

    dataset: str
    aggregator: str
    reg: float | None
    lr: float
    seed: int
    epochs: int
    size: int = 1024
    batch: int = 32

    @property
    def label(self) -> str:
        """How the table and the figure call this setting.

        Example:
            >>> Run("mnist", "upgrad", 1e-4, 0.1, seed=1, epochs=8).label
            'reg 1e-4'
        """
        return self.aggregator if self.reg is None else f"reg {power_of_ten(self.reg)}"


@dataclass(frozen=True)
class Outcome:
    """What a run has shown, step by step; shorter than planned if the run diverged.

    Args:
        losses: Mean loss of the batch, before the step.
        largest_weights: Largest weight, as a multiple of the weight 1/m that Mean gives.
        worst_cosines: Least cosine between the update and the gradient of an image.
        harmed: Share of the images that the update makes worse, to first order.
        diverged: Whether the loss became infinite, NaN or absurd.
    """

    losses: list[float]
    largest_weights: list[float]
    worst_cosines: list[float]
    harmed: list[float]
    diverged: bool

    @property
    def area(self) -> float:
        """Area under the curve of the training loss per step; infinite if the run diverged.

        Example:
            >>> Outcome([3.0, 1.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0], diverged=False).area
            2.0
        """
        return float("inf") if self.diverged else sum(self.losses) / len(self.losses)


def train(run: Run, architecture: Architecture, images: Tensor, labels: Tensor) -> Outcome:
    """Train a network of the paper from scratch.

    Args:
        run: The settings.
        architecture: Which network.
        images: (size, channels, height, width), normalised.
        labels: (size,).
    """
    # Here, not above: torchmetrics takes seconds to import, and `--help` should not wait for it.
    from lightning_jd.metrics import dual_cone_violation

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        model = paper_cnn(architecture).to(images.device)
    order = torch.Generator().manual_seed(run.seed)
    options: dict[str, Any] = {} if run.reg is None else {"reg": run.reg}
    aggregator = resolve({"name": run.aggregator} | options)
    optimizer = torch.optim.SGD(model.parameters(), lr=run.lr)
    steps: list[tuple[float, float, float, float]] = []
    for _ in range(run.epochs):
        for chosen in torch.randperm(len(labels), generator=order).split(run.batch):
            losses = functional.cross_entropy(
                model(images[chosen]), labels[chosen], reduction="none"
            )
            mean = float(losses.detach().mean())
            if not mean < _DIVERGED:
                return _outcome(steps, diverged=True)
            optimizer.zero_grad()
            try:
                report = backward(losses, model, aggregator)
            except NonFiniteError:
                return _outcome(steps, diverged=True)
            optimizer.step()
            assert report.weights is not None
            violation = dual_cone_violation(report.gramian, report.weights)
            largest = float(report.weights.abs().max()) * len(chosen)
            steps.append((mean, largest, float(violation.worst_cosine), float(violation.share)))
    return _outcome(steps, diverged=False)


def _outcome(steps: list[tuple[float, float, float, float]], *, diverged: bool) -> Outcome:
    columns = zip(*steps, strict=True) if steps else iter([()] * 4)
    # Six digits are more than a figure shows, and keep the file of results small.
    losses, largest, cosines, harmed = ([float(f"{x:.6g}") for x in c] for c in columns)
    return Outcome(losses, largest, cosines, harmed, diverged)

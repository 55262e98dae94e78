"""One training run with an optimizer that adds, or aggregates, momentum and gradient."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.lab.data import Images, paper_subset
from examples.lab.device import here
from lightning_jd import optim

#: What is compared: name to class, arguments, and where the walk over 10^(k/12) begins.
OPTIMIZERS: dict[str, tuple[type[optim.SGD | optim.Adam | optim.NAdam], dict[str, Any], int]] = {
    "SGD, momentum 0.9": (optim.SGD, {"momentum": 0.9}, -20),
    "SGD, Nesterov 0.9": (optim.SGD, {"momentum": 0.9, "nesterov": True}, -20),
    "Adam": (optim.Adam, {}, -32),
    "NAdam": (optim.NAdam, {}, -32),
}
#: The most images that are kept to measure the accuracy with.
HELD_OUT = 2048

_DIVERGED = 1e3


@dataclass(frozen=True)
class MomentumRun:
    """Everything that decides the outcome of a run.

    Args:
        dataset: Name of the dataset.
        optimizer: A name of :data:`OPTIMIZERS`.
        aggregator: What combines momentum and gradient; ``"sum"`` is torch's optimizer.
        lr: The learning rate.
        seed: Decides the images, the initial weights and the order of the batches.
        epochs: How often each image is seen.
        size: The number of training images.
        batch: The number of images in a step.
        device: The name of the device: no run of one is taken for that of another.
    """

    dataset: str
    optimizer: str
    aggregator: str
    lr: float
    seed: int
    epochs: int
    size: int = 2048
    batch: int = 32
    device: str = "cpu"


@dataclass(frozen=True)
class MomentumOutcome:
    """What a run has shown.

    Args:
        losses: The loss of each batch, before the step; fewer than planned if it diverged.
        conflict: The share of steps in which momentum and gradient opposed each other.
        accuracy: On images that were not trained on, at the end.
        diverged: Whether the loss has left all bounds.
    """

    losses: list[float]
    conflict: float
    accuracy: float
    diverged: bool = False

    @property
    def area(self) -> float:
        """Area under the curve of the training loss per step; infinite if it diverged."""
        return float("inf") if self.diverged else statistics.mean(self.losses)


def small_cnn(channels: int) -> nn.Sequential:
    """Two convolutions with stride two, two linear layers, ELU; 10 classes.

    Example:
        >>> small_cnn(1)(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """
    return nn.Sequential(
        nn.Conv2d(channels, 16, 5, stride=2),
        nn.ELU(),
        nn.Conv2d(16, 32, 5, stride=2),
        nn.ELU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ELU(),
        nn.Linear(64, 10),
    )


def train(run: MomentumRun, split: Images) -> MomentumOutcome:
    """Train a small convolutional network from scratch."""
    held_out = min(HELD_OUT, len(split.labels) - run.size)
    images, labels = paper_subset(split, run.seed, run.size + held_out)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        model = small_cnn(images.shape[1]).to(here())
    images, labels = images.to(here()), labels.to(here())
    kind, arguments, _ = OPTIMIZERS[run.optimizer]
    optimizer = kind(model.parameters(), lr=run.lr, aggregator=run.aggregator, **arguments)
    losses: list[float] = []
    opposed = []
    for chosen in _batches(run):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images[chosen]), labels[chosen])
        losses.append(float(f"{loss.item():.6g}"))
        if not losses[-1] < _DIVERGED:
            return MomentumOutcome(losses, 0.0, 0.0, diverged=True)
        loss.backward()
        opposed.append(_opposed(optimizer))
        optimizer.step()
    accuracy = _accuracy(model, images[run.size :], labels[run.size :])
    return MomentumOutcome(losses, statistics.mean(opposed), accuracy)


def _batches(run: MomentumRun) -> Iterator[Tensor]:
    order = torch.Generator().manual_seed(run.seed)
    for _ in range(run.epochs):
        yield from torch.randperm(run.size, generator=order).to(here()).split(run.batch)


def _opposed(optimizer: torch.optim.Optimizer) -> bool:
    """Whether momentum and gradient have a negative inner product."""
    total = 0.0
    for p, state in optimizer.state.items():
        kept = state.get("momentum_buffer", state.get("exp_avg"))
        if kept is not None and p.grad is not None:
            total += float((kept * p.grad).sum())
    return total < 0


@torch.no_grad()
def _accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    found = torch.cat([model(some).argmax(1) for some in images.split(256)])
    return float((found == labels).float().mean())

"""Three tasks on pairs of overlapping digits, those of the tutorial on several tasks."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.lab.data.multitask import Part, load_multitask
from lightning_jd.errors import MissingDependencyError

#: Which digit is on the left, which on the right, what is their sum?
TASKS = ("left", "right", "sum")


class Pairs(NamedTuple):
    """Images of two overlapping digits, and the answers."""

    images: Tensor
    left: Tensor
    right: Tensor
    sum: Tensor

    def chosen(self, index: Tensor) -> "Pairs":
        """Some of them."""
        return Pairs(*(tensor[index] for tensor in self))


def digit_pairs(n: int, indices: slice, seed: int) -> Pairs:
    """Draw ``n`` pairs from some of scikit-learn's 1,797 digits.

    Raises:
        MissingDependencyError: If ``scikit-learn`` is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingDependencyError.of("The digits", "scikit-learn", "test") from error
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[indices] / 16
    labels = torch.tensor(digits.target)[indices]
    generator = torch.Generator().manual_seed(seed)
    left, right = torch.randint(0, len(images), (2, n), generator=generator)
    canvas = torch.zeros(n, 1, 8, 12)
    canvas[:, 0, :, :8] = images[left]
    canvas[:, 0, :, 4:] = torch.maximum(canvas[:, 0, :, 4:], images[right])
    total = (labels[left] + labels[right]).float()
    return Pairs(canvas, labels[left], labels[right], total)


def mnist_pairs(size: int, folder: str | Path) -> tuple[Pairs, Pairs, Pairs]:
    """Training, validation and test pairs of MultiMNIST, images of 36x36.

    Raises:
        ArgumentError: If a file is missing or damaged, or has fewer than ``size`` images.
    """
    whole = load_multitask("multimnist", folder).limited(size)
    judged = slice(0, size // 2)
    return (
        _pairs(whole.train),
        _pairs(whole.validation.chosen(judged)),
        _pairs(whole.test.chosen(judged)),
    )


def _pairs(part: Part) -> Pairs:
    left, right = part.targets["left"], part.targets["right"]
    return Pairs(part.inputs[0], left, right, (left + right).float())


class PairNetwork(nn.Module):
    """A trunk that the tasks share, and a linear head for each.

    Args:
        large: For the images of 36x36 of MultiMNIST, not for those of 8x12.
    """

    def __init__(self, large: bool = False) -> None:
        super().__init__()
        kernel, stride, width = (5, 2, 784) if large else (3, 1, 512)
        self.trunk = nn.Sequential(
            *(nn.Conv2d(1, 16, kernel, stride), nn.ReLU(), nn.Conv2d(16, 16, 3, stride), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(width, 32), nn.ReLU()),
        )
        heads = {task: nn.Linear(32, 1 if task == "sum" else 10) for task in TASKS}
        self.heads = nn.ModuleDict(heads)

    def losses(self, batch: Pairs) -> dict[str, Tensor]:
        """Cross-entropies of the digits, and the mean squared error of their sum."""
        features = self.trunk(batch.images)
        return {
            "left": functional.cross_entropy(self.heads["left"](features), batch.left),
            "right": functional.cross_entropy(self.heads["right"](features), batch.right),
            "sum": functional.mse_loss(self.heads["sum"](features)[:, 0], batch.sum),
        }

    @torch.no_grad()
    def metrics(self, part: Pairs) -> dict[str, float]:
        """Accuracies of the digits in percent, and the mean absolute error of the sum."""
        features = self.trunk(part.images)
        guess = {task: head(features) for task, head in self.heads.items()}
        return {
            "left": 100 * float((guess["left"].argmax(1) == part.left).float().mean()),
            "right": 100 * float((guess["right"].argmax(1) == part.right).float().mean()),
            "sum": float((guess["sum"][:, 0] - part.sum).abs().mean()),
        }

"""The work that engines are measured on: models, synthetic batches, and their losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self, override

from examples.lab.work.paper import INPUT_SHAPES, Architecture, narrow_paper_cnn, paper_cnn

CLASSES = 10


@dataclass(frozen=True)
class Work:
    """A model and one batch.

    Attributes:
        model: Maps a batch to class scores, or a :class:`TrunkAndHeads`.
        x: The batch.
        y: One class per instance.
    """

    model: nn.Module
    x: Tensor
    y: Tensor

    def to(self, device: torch.device) -> Self:
        """The same on a device."""
        parts: dict[str, Any] = {part.name: getattr(self, part.name) for part in fields(self)}
        for name, part in parts.items():
            if isinstance(part, (Tensor, nn.Module)):
                parts[name] = part.to(device)
        return replace(self, **parts)

    @property
    def has_tasks(self) -> bool:
        """One objective per task, instead of one per instance."""
        return isinstance(self.model, TrunkAndHeads)

    def losses(self, model: nn.Module | None = None) -> Tensor | list[Tensor]:
        """The forward pass: one loss per instance (m,), or a list of one scalar per task.

        Args:
            model: What is called in the place of the model, if somebody has wrapped it.
        """
        scores = (model or self.model)(self.x)
        if isinstance(scores, list):
            return [nn.functional.cross_entropy(score, self.y) for score in scores]
        return nn.functional.cross_entropy(scores, self.y, reduction="none")


def mean_of(losses: Tensor | list[Tensor]) -> Tensor:
    """The loss of plain training: the mean over instances, or over tasks."""
    return (torch.stack(losses) if isinstance(losses, list) else losses).mean()


class TrunkAndHeads(nn.Module):
    """One body, and a linear layer on top of it for each task."""

    def __init__(
        self, trunk: nn.Sequential, width: int, tasks: int, outputs: int = CLASSES
    ) -> None:
        super().__init__()
        self.trunk = trunk
        self.heads = nn.ModuleList(nn.Linear(width, outputs) for _ in range(tasks))
        self.features = torch.empty(0)

    @override
    def forward(self, x: Tensor) -> list[Tensor]:
        self.features = self.trunk(x)  # kept: TorchJD has to be told where the heads begin
        return [head(self.features) for head in self.heads]


class _Block(nn.Module):
    """Two convolutions with GroupNorm and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1, groups: int = 32) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.GroupNorm(groups, outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.GroupNorm(groups, outputs),
        )
        self.shortcut = nn.Sequential()
        if stride > 1:
            project = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(project, nn.GroupNorm(groups, outputs))

    @override
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        y += self.shortcut(x)
        return y.relu_()


class Transformer(nn.Module):
    """An encoder whose averaged output is classified."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    @override
    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.encoder(x).mean(dim=1))
        return scores


def cnn(name: Architecture, batch: int = 32) -> Work:
    """A network of the paper."""
    return _work(paper_cnn(name), batch, *INPUT_SHAPES[name])


def narrow_cnn(batch: int, width: int, *, grouped: bool) -> Work:
    """The layers of the paper's networks at another width, on images of 16x16."""
    return _work(narrow_paper_cnn(width, grouped=grouped), batch, 3, 16, 16)


def mlp(batch: int, width: int = 1024, hidden: int = 2, inputs: int = 784) -> Work:
    """Linear layers with ReLU: inputs, ``hidden`` times ``width``, classes."""
    body = mlp_layers([inputs, *[width] * hidden])
    return _work(nn.Sequential(*body, nn.Linear(width, CLASSES)), batch, inputs)


def resnet18(batch: int = 32) -> Work:
    """ResNet-18 with GroupNorm instead of BatchNorm, on images of 3x32x32."""
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.GroupNorm(32, 64), nn.ReLU(inplace=True)]
    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    blocks = [_Block(a, b, 1 if a == b else 2) for a, b in pairwise(widths)]
    top = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES)]
    model = nn.Sequential(*stem, nn.MaxPool2d(3, 2, 1), *blocks, *top)
    return _work(model, batch, 3, 32, 32)


def resnet_block(batch: int = 32, width: int = 64, size: int = 16) -> Work:
    """One block of a ResNet with GroupNorm, on feature maps, and a classifier."""
    top = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES)]
    model = nn.Sequential(_Block(width, width, groups=width // 2), *top)
    return _work(model, batch, width, size, size)


def transformer(batch: int = 32, width: int = 128, layers: int = 4, length: int = 64) -> Work:
    """A transformer encoder with four heads."""
    return _work(Transformer(width, layers), batch, length, width)


def mlp_tasks(tasks: int, batch: int = 64, width: int = 1024, inputs: int = 784) -> Work:
    """The trunk of :func:`mlp` and a head per task."""
    trunk = nn.Sequential(*mlp_layers([inputs, width, width]))
    return _work(TrunkAndHeads(trunk, width, tasks), batch, inputs)


def cnn_tasks(tasks: int, batch: int = 64, name: Architecture = "cifar10") -> Work:
    """A network of the paper without its last layer, and a head per task."""
    *body, last = paper_cnn(name)
    assert isinstance(last, nn.Linear)
    heads = TrunkAndHeads(nn.Sequential(*body), last.in_features, tasks)
    return _work(heads, batch, *INPUT_SHAPES[name])


def mlp_layers(sizes: Sequence[int]) -> list[nn.Module]:
    """Linear layers between the sizes, each with a ReLU behind it."""
    return [module for a, b in pairwise(sizes) for module in (nn.Linear(a, b), nn.ReLU())]


def _work(model: nn.Module, batch: int, *shape: int) -> Work:
    return Work(model, torch.randn(batch, *shape), torch.randint(0, CLASSES, (batch,)))

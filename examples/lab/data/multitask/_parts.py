"""Inputs and targets of several tasks, in three parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lightning_jd.errors import ArgumentError


@dataclass(frozen=True)
class Task:
    """What is to be predicted.

    Attributes:
        name: Its name.
        kind: One of several classes, a yes or no, or a number (standardised).
        outputs: The numbers that a network gives for it: one per class, or one.
        scale: The unit of a standardised number, so that an error can be told in its own unit.
    """

    name: str
    kind: Literal["classes", "binary", "number"]
    outputs: int = 1
    scale: float = 1.0

    @property
    def metric(self) -> str:
        """What it is judged by."""
        return {"classes": "accuracy %", "binary": "AUC %", "number": "MAE"}[self.kind]

    @property
    def higher_is_better(self) -> bool:
        """Whether a high value of the metric is good."""
        return self.kind != "number"


@dataclass(frozen=True)
class Part:
    """Instances.

    Attributes:
        inputs: Tensors with one entry per instance each: the arguments of a network.
        targets: Task to its targets, one per instance.
    """

    inputs: tuple[Tensor, ...]
    targets: Mapping[str, Tensor]

    def __len__(self) -> int:
        return len(self.inputs[0])

    def to(self, device: torch.device) -> Part:
        """The same instances on a device."""
        inputs = tuple(tensor.to(device) for tensor in self.inputs)
        return Part(inputs, {name: tensor.to(device) for name, tensor in self.targets.items()})

    def chosen(self, indices: Tensor | slice) -> Part:
        """Some of the instances."""
        inputs = tuple(tensor[indices] for tensor in self.inputs)
        return Part(inputs, {name: tensor[indices] for name, tensor in self.targets.items()})


@dataclass(frozen=True)
class Multitask:
    """A dataset: what is predicted, and the instances to train, to choose and to judge with."""

    tasks: tuple[Task, ...]
    train: Part
    validation: Part
    test: Part

    def to(self, device: torch.device) -> Multitask:
        """The same on a device."""
        parts = (part.to(device) for part in (self.train, self.validation, self.test))
        return Multitask(self.tasks, *parts)

    def limited(self, size: int) -> Multitask:
        """The same with the first ``size`` instances of training, and half as many of the others.

        Raises:
            ArgumentError: If there are fewer.
        """
        if not 2 <= size <= len(self.train):
            raise ArgumentError(
                f"`size` must be from 2 to {len(self.train)} (all training instances), got {size}."
            )
        half = slice(0, max(1, size // 2))
        return Multitask(
            self.tasks,
            self.train.chosen(slice(0, size)),
            self.validation.chosen(half),
            self.test,
        )


def shuffled(n: int, seed: int = 0) -> Tensor:
    """A random order that is always the same."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))

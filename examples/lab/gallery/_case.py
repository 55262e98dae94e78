"""What a model of the gallery is: a module, its batches, and named losses per instance."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_jd.errors import MissingDependencyError

# Configurations are enough: nothing is looked up, let alone downloaded. It must be said before
# the libraries are imported.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")

Batch = Mapping[str, Any]
#: Three losses of every instance, by the name of their task; ``None`` for a task without labels.
TaskLosses = dict[str, Tensor]


_CPU = torch.device("cpu")


@dataclass
class Specimen:
    """A model with its batches.

    Attributes:
        model: The module, with random weights.
        batch: The batch of step i. Most models get the same one in every step.
        losses_of: Model and batch to the losses of each task, one entry per instance.
    """

    model: nn.Module
    batch: Callable[[int], Batch]
    losses_of: Callable[[nn.Module, Batch], TaskLosses]
    dtype: torch.dtype = torch.float32
    device: torch.device = _CPU

    def per_task(self, step: int = 0) -> TaskLosses:
        """The forward pass: the losses of every task, shape (m,) each."""
        return self.losses_of(self.model, _cast(self.batch(step), self.dtype, self.device))

    def instances(self, step: int = 0) -> Tensor:
        """One loss per instance, the sum over its tasks, shape (m,)."""
        return torch.stack(list(self.per_task(step).values())).sum(dim=0)

    def tasks(self, step: int = 0) -> dict[str, Tensor]:
        """One loss per task, the mean over its instances."""
        return {name: losses.mean() for name, losses in self.per_task(step).items()}

    def plain(self, step: int = 0) -> Tensor:
        """The scalar that ordinary training differentiates."""
        return self.instances(step).mean()

    def to(self, device: torch.device) -> Specimen:
        """The same model and batches on a device, in place."""
        self.model.to(device)
        self.device = device
        return self

    def double(self) -> Specimen:
        """The same model and batches in float64 (complex128), in place."""
        self.model.double()
        for parameter in self.model.parameters():  # `Module.double` leaves complex numbers alone
            if parameter.is_complex():
                parameter.data = parameter.data.to(torch.complex128)
        self.dtype = torch.float64
        return self


@dataclass(frozen=True)
class GalleryCase:
    """One model of the gallery.

    Attributes:
        name: For the table, for ``--only`` and for the tests.
        build: The number of instances to a specimen; the caller sets the seed.
        instances: The number of instances in a batch of the benchmark.
        must: The largest allowed ratio of a whole step to the plain one, for instances.
        tasks_must: The same for tasks.
        requires: The packages that it needs.
        mixes: Why the instances really depend on one another, so that one pass per instance is the
            price; empty if they do not.
        casts: Why float64 is not float64 everywhere inside of the model; empty if it is.
        single: Why it cannot run in float64 at all; empty if it can.
    """

    name: str
    build: Callable[[int], Specimen]
    instances: int = 16
    must: float | None = None
    tasks_must: float | None = None
    requires: tuple[str, ...] = ()
    mixes: str = ""
    casts: str = ""
    single: str = ""

    def missing(self) -> list[str]:
        """The packages that it needs and that are not installed."""
        return [name for name in self.requires if importlib.util.find_spec(name) is None]

    def check_installed(self) -> None:
        """Make sure that it can be built.

        Raises:
            MissingDependencyError: If a package is missing.
        """
        if missing := self.missing():
            raise MissingDependencyError.of(f"The model {self.name}", missing[0], "gallery")

    def specimen(self, instances: int | None = None) -> Specimen:
        """Build it from seed 0, which is not left behind.

        Args:
            instances: The number of instances in a batch, if not that of the benchmark.

        Raises:
            MissingDependencyError: If a package is missing.
        """
        self.check_installed()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.build(instances or self.instances)


def always(batch: Batch) -> Callable[[int], Batch]:
    """The same batch in every step."""
    return lambda step: batch


def three_labels(scores: Tensor, labels: Tensor) -> TaskLosses:
    """Cross-entropy of three classifiers that share the last layer.

    Args:
        scores: Shape (m, 3 c).
        labels: Shape (m, 3), values below c.
    """
    heads = scores.chunk(3, dim=1)
    return {
        f"label {k}": F.cross_entropy(head, labels[:, k], reduction="none")
        for k, head in enumerate(heads)
    }


def three_targets(outputs: Tensor, targets: Tensor) -> TaskLosses:
    """Mean squares of three parts of the last dimension of the output; instances are the first."""
    pairs = zip(outputs.chunk(3, dim=-1), targets.chunk(3, dim=-1), strict=True)
    return {
        f"part {k}": (output - target).square().flatten(start_dim=1).mean(dim=1)
        for k, (output, target) in enumerate(pairs)
    }


def three_spans(scores: Tensor, tokens: Tensor) -> TaskLosses:
    """Cross-entropy of the tokens at the beginning, in the middle and at the end of a sequence.

    Args:
        scores: Shape (m, length, vocabulary).
        tokens: Shape (m, length).
    """
    losses = F.cross_entropy(scores.transpose(1, 2), tokens, reduction="none")
    names = ("beginning", "middle", "end")
    return {n: part.mean(dim=1) for n, part in zip(names, losses.chunk(3, dim=1), strict=True)}


def _cast(batch: Batch, dtype: torch.dtype, device: torch.device) -> Batch:
    return {name: _cast_one(value, dtype, device) for name, value in batch.items()}


def _cast_one(value: Any, dtype: torch.dtype, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return (value.to(dtype) if value.is_floating_point() else value).to(device)
    return value

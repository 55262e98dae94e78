"""One run of ``imbalance``: three tasks, the loss of one multiplied."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from examples.lab.store import Store
from examples.lab.studies._settings import seeded
from examples.lab.work.pairs import TASKS, PairNetwork, Pairs, digit_pairs, mnist_pairs
from lightning_jd.aggregators import Method
from lightning_jd.core import backward
from lightning_jd.errors import NonFiniteError

DATASETS = ("digits", "multimnist")
#: In the place of a method: one network for each task, and what needs no image.
SINGLE, GUESS = "single", "guess"
#: UPGrad as in the paper, and the default of 0.2: regularised relative to the trace.
TRACE = "upgrad:trace"
OPTIMIZERS = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
_CHANCE = 10.0  # the accuracy of a guess among ten digits


@dataclass(frozen=True)
class Run:
    """Everything that decides the outcome of a run."""

    method: str
    factor: float
    lr: float
    seed: int
    task: str = ""
    optimizer: str = "adam"
    epochs: int = 6
    size: int = 4000
    data: str = "digits"

    @property
    def label(self) -> str:
        """The description in the progress bar."""
        name = f"{self.method} ({self.task})" if self.task else self.method
        return f"{name}, factor {self.factor:g}, lr {self.lr:g}, seed {self.seed}"


@dataclass(frozen=True)
class Outcome:
    """Metrics of each task after the last epoch; empty if the run diverged."""

    validation: dict[str, float]
    test: dict[str, float]
    harmed: float | None = None


Runs = Store[Run, Outcome]


def stored(path: Path) -> Runs:
    """The finished runs of a file."""
    return Store(
        path,
        write=lambda run, found: {"run": asdict(run), "found": asdict(found)},
        read=lambda line: (Run(**line["run"]), Outcome(**line["found"])),
    )


class Trainer:
    """Trains runs on the same pairs; validation and test digits are other handwriting.

    Args:
        data: The name of the dataset.
        folder: Where the files of MNIST are.
        size: The number of training pairs.
    """

    def __init__(self, data: str, folder: str, size: int) -> None:
        if data == "multimnist":
            self.train, self.validation, self.test = mnist_pairs(size, folder)
            return
        self.train = digit_pairs(size, slice(0, 1200), seed=0)
        self.validation = digit_pairs(2000, slice(1200, 1400), seed=2)
        self.test = digit_pairs(2000, slice(1400, None), seed=1)

    def __call__(self, run: Run) -> Outcome:
        """Train from scratch; a run whose gradients are not finite has diverged."""
        if run.method == GUESS:
            return Outcome(guess(self.validation), guess(self.test))
        torch.manual_seed(run.seed)
        network = PairNetwork(large=run.data == "multimnist")
        optimizer = OPTIMIZERS[run.optimizer](network.parameters(), lr=run.lr)
        method = None if run.method == SINGLE else _method(run)
        harmed: list[float] = []
        try:
            for _ in range(run.epochs):
                for index in torch.randperm(len(self.train.images)).split(64):
                    optimizer.zero_grad()
                    self._backward(network, run, method, self.train.chosen(index), harmed)
                    optimizer.step()
        except NonFiniteError:
            return Outcome({}, {})
        parts = [network.metrics(part) for part in (self.validation, self.test)]
        if any(value != value for part in parts for value in part.values()):
            return Outcome({}, {})
        return Outcome(parts[0], parts[1], statistics.mean(harmed) if harmed else None)

    @staticmethod
    def _backward(
        network: PairNetwork, run: Run, method: Method | None, batch: Pairs, harmed: list[float]
    ) -> None:
        losses: dict[str, Any] = network.losses(batch)
        if method is None:
            losses[run.task].backward()
            return
        losses["sum"] = run.factor * losses["sum"]
        report = backward(losses, network, method, params="shared")
        gramian, weights = report.known_gramian, report.known_weights
        if gramian is not None and weights is not None:
            lost = gramian @ weights.to(gramian) < -1e-6 * gramian.diagonal()
            harmed.append(float(lost.float().mean()))


def _method(run: Run) -> Method:
    options = {"relative_to": "trace"} if run.method == TRACE else {}
    return seeded(run.method.partition(":")[0], run.seed, **options)


def guess(part: Pairs) -> dict[str, float]:
    """The metrics of a guess without an image; the best guess of the sum is its median."""
    error = float((part.sum - part.sum.median()).abs().mean())
    return {"left": _CHANCE, "right": _CHANCE, "sum": error}


@dataclass(frozen=True)
class Scale:
    """Turns metrics into scores: 0 is a guess, 100 is a network for that task alone."""

    single: dict[str, float]
    guess: dict[str, float]

    def scores(self, metrics: dict[str, float]) -> dict[str, float]:
        """The score of each task in percent; all zero for a run that diverged."""
        if not metrics:
            return dict.fromkeys(TASKS, 0.0)
        return {
            task: 100 * (metrics[task] - self.guess[task]) / (self.single[task] - self.guess[task])
            for task in TASKS
        }

    def worst(self, metrics: dict[str, float]) -> float:
        """The score of the worst task, at least 0."""
        return max(0.0, min(self.scores(metrics).values()))


def with_seeds(run: Run, seeds: int) -> list[Run]:
    """The same run with every seed."""
    return [replace(run, seed=seed) for seed in range(seeds)]

"""What decides a training run with several tasks, and what it has shown."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from examples.lab.store import Store

#: In the place of a method: one network per task, the baseline.
SINGLE = "single"


@dataclass(frozen=True)
class Trial:
    """Everything that decides the outcome of a run.

    Attributes:
        dataset: Name of the dataset.
        network: Name of the network.
        method: Name of an aggregator or balancer, or ``"single"``.
        task: The only task that is trained, if the method is ``"single"``; else empty.
        lr: The learning rate.
        weight_decay: Of AdamW.
        seed: Decides the initial weights and the order of the batches.
        size: The number of training instances.
        epochs: How often each of them is seen, at most.
        batch: How many of them are in a step.
        patience: The run ends after this many epochs without a better validation score.
        device: The name of the device: no run of one is taken for that of another.
    """

    dataset: str
    network: str
    method: str
    task: str
    lr: float
    weight_decay: float
    seed: int
    size: int
    epochs: int
    batch: int
    patience: int
    device: str = "cpu"

    @property
    def label(self) -> str:
        """How the progress bar calls it."""
        name = f"{self.method} ({self.task})" if self.task else self.method
        return f"seed {self.seed} {name}, lr {self.lr:.2g}, decay {self.weight_decay:g}"


@dataclass(frozen=True)
class Result:
    """What a run has shown.

    Attributes:
        score: Mean over the tasks of the validation score in the best epoch: of accuracy, AUC, or
            the negative error of a standardised number. What everything is chosen by.
        validation: Task to its metric on the validation part, in the best epoch.
        test: Task to its metric on the test part, in the best epoch. Nothing is chosen by it.
        best_epoch: Which one.
        epochs: How many were trained.
        seconds_per_step: Time of a training step, the median: of the processor, or of the wall on
            a device.
        conflict: Mean share of the pairs of tasks whose gradients conflict; ``None`` without
            gradients.
        harmed: Mean share of the tasks that a step makes worse, to first order.
    """

    score: float
    validation: dict[str, float] = field(default_factory=dict)
    test: dict[str, float] = field(default_factory=dict)
    best_epoch: int = 0
    epochs: int = 0
    seconds_per_step: float = float("nan")
    conflict: float | None = None
    harmed: float | None = None

    @property
    def failed(self) -> bool:
        """Whether no epoch ended with a finite validation score."""
        return not self.test


FAILED = Result(score=float("-inf"))
Trials = Store[Trial, Result]


def stored_trials(path: Path) -> Trials:
    """The finished runs of a file.

    Raises:
        ArgumentError: If the file exists and holds something else.
    """
    return Store(path, _written, _read)


def _written(trial: Trial, result: Result) -> Any:
    return {"trial": asdict(trial), "result": asdict(result)}


def _read(entry: Any) -> tuple[Trial, Result]:
    return Trial(**entry["trial"]), Result(**entry["result"])


def mean_of(values: list[float | None]) -> float | None:
    """The mean of what is known."""
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None

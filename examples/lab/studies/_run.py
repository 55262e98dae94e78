"""What decides a training run, and what it has shown."""

from dataclasses import dataclass
from typing import Literal

from examples.lab.statistics import power_of_ten

#: How a run ended: as planned; with an absurd loss; or early, because a rival had won already.
End = Literal["finished", "diverged", "given up"]
Optimizer = Literal["sgd", "adam"]


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
        optimizer: What turns gradients into steps: SGD without momentum, or Adam with the default
            settings of PyTorch.
        device: The name of the device: no run of one is taken for that of another.
    """

    dataset: str
    aggregator: str
    reg: float | None
    lr: float
    seed: int
    epochs: int
    size: int = 1024
    batch: int = 32
    optimizer: Optimizer = "sgd"
    device: str = "cpu"

    @property
    def label(self) -> str:
        """How the study of the regularisation calls this setting.

        Example:
            >>> Run("mnist", "upgrad", 1e-4, 0.1, seed=1, epochs=8).label
            'reg 1e-4'
        """
        return self.aggregator if self.reg is None else f"reg {power_of_ten(self.reg)}"


@dataclass(frozen=True)
class Outcome:
    """What a run has shown, step by step; shorter than planned unless it is finished.

    Args:
        losses: Mean loss of the batch, before the step.
        similarities: Cosine between the update and that of SGD, the mean of the gradients.
        largest_weights: Largest weight, as a multiple of the weight 1/m that Mean gives; zero for
            a method without weights.
        worst_cosines: Least cosine between the update and the gradient of an image.
        harmed: Share of the images that the update makes worse, to first order.
        end: How the run ended.
    """

    losses: list[float]
    similarities: list[float]
    largest_weights: list[float]
    worst_cosines: list[float]
    harmed: list[float]
    end: End = "finished"

    @property
    def finished(self) -> bool:
        """Whether the run went on to its planned end."""
        return self.end == "finished"

    @property
    def area(self) -> float:
        """Area under the curve of the training loss per step; infinite unless finished.

        Example:
            >>> Outcome([3.0, 1.0], *[[0.0, 0.0]] * 4).area
            2.0
            >>> Outcome([3.0], *[[0.0]] * 4, end="diverged").area
            inf
        """
        return sum(self.losses) / len(self.losses) if self.finished else float("inf")

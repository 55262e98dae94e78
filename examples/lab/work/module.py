"""The work of a benchmark as a LightningModule."""

from typing import Any

import torch
from lightning.pytorch import LightningModule
from typing_extensions import override

from examples.lab.work.networks import Work, mean_of


class WorkModule(LightningModule):
    """Trains the model of some work on its one batch.

    Args:
        work: The model, the batch and its losses.
        plain: Whether to return the mean of the losses, as ordinary training does.
    """

    def __init__(self, work: Work, *, plain: bool) -> None:
        super().__init__()
        self.work, self.model, self._plain = work, work.model, plain

    @override
    def training_step(self, batch: int) -> Any:
        losses = self.work.losses()
        return mean_of(losses) if self._plain else {"loss": losses}

    @override
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)

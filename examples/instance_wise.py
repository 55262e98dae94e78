"""One objective per training example: does no example get worse while the others improve?

Every step, the losses of 32 examples are 32 objectives. The module differs from ordinary training
by ``reduction="none"``; the flag ``jacobian_descent`` on the module replaces the callback.
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_jd import JDModuleMixin


class Classifier(JDModuleMixin, LightningModule):
    def __init__(self, aggregator: str) -> None:
        super().__init__()
        self.jacobian_descent = aggregator
        self.net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
        self.worse: list[float] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.net(x), y, reduction="none")  # (32,), not their mean

    def on_train_batch_start(self, batch: list[Tensor], batch_idx: int) -> None:
        self.before = self.losses(batch)

    def on_train_batch_end(self, outputs: object, batch: list[Tensor], batch_idx: int) -> None:
        self.worse.append((self.losses(batch) > self.before + 1e-6).float().mean().item())

    def losses(self, batch: list[Tensor]) -> Tensor:
        with torch.no_grad():
            return F.cross_entropy(self.net(batch[0]), batch[1], reduction="none")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def share_that_gets_worse(aggregator: str) -> float:
    """The average share of the examples in a batch whose own loss rises in the step on it."""
    seed_everything(0, verbose=False)
    x = torch.randn(256, 2)
    y = (x[:, 0] * x[:, 1] > 0).long()  # four quadrants, two classes
    module = Classifier(aggregator)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=10,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(TensorDataset(x, y), batch_size=32))
    return sum(module.worse) / len(module.worse)


if __name__ == "__main__":
    mean, upgrad = share_that_gets_worse("mean"), share_that_gets_worse("upgrad")
    print("examples of a batch whose loss rises in the step that is taken on it")
    print(f"mean of the gradients: {mean:.1%}\nUPGrad:                {upgrad:.1%}")
    assert upgrad < mean / 4, "UPGrad is expected to respect almost every example"

"""Two tasks pull one layer in opposite directions: can both improve? Seconds on a CPU, no data.

The module returns its losses by name. The only other line is the callback on the Trainer.
"""

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_jd import JacobianDescent


class TwoTasks(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)
        self.history: list[Tensor] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> dict[str, dict[str, Tensor]]:
        x, targets = batch
        small, large = (self.layer(x) - targets).square().mean(dim=0)
        self.history.append(torch.stack([small, large]).detach())
        return {"loss": {"small": small, "large": large}}  # no sum, no weights

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.02)


def change_of_losses(aggregator: str) -> Tensor:
    seed_everything(0, verbose=False)
    x = torch.randn(64, 8)
    target = x[:, :1] + x[:, 1:2]
    data = TensorDataset(x, torch.cat([target, -3 * target], dim=1))  # opposed, unequal scales
    module = TwoTasks()
    trainer = Trainer(
        callbacks=[JacobianDescent(aggregator)],
        accelerator="cpu",
        max_epochs=50,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(data, batch_size=64))
    return module.history[-1] - module.history[0]


if __name__ == "__main__":
    mean, upgrad = change_of_losses("mean"), change_of_losses("upgrad")
    print("change of the two losses during training (less is better)")
    print(f"mean of the gradients: {mean[0]:+.2f} {mean[1]:+.2f}")
    print(f"UPGrad:                {upgrad[0]:+.2f} {upgrad[1]:+.2f}")
    assert mean.max() > 0, "the mean is expected to sacrifice the smaller task"
    assert upgrad.max() < 0, "UPGrad is expected to improve both"

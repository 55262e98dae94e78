"""The command line of a module that is trained by Jacobian descent: nothing but LightningCLI.

python examples/cli.py fit --config examples/cli.yaml
python examples/cli.py fit --config examples/cli.yaml --model.lr 0.05 --trainer.max_epochs 10
"""

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class TwoHeads(LightningModule):
    """A shared layer and two heads, one per task.

    Args:
        width: Outputs of the shared layer.
        lr: Learning rate.
    """

    def __init__(self, width: int = 16, lr: float = 0.1) -> None:
        super().__init__()
        self.lr = lr
        self.shared = nn.Sequential(nn.Linear(8, width), nn.Tanh())
        self.heads = nn.ModuleDict({"sum": nn.Linear(width, 1), "product": nn.Linear(width, 1)})

    def training_step(self, batch: list[Tensor], batch_idx: int) -> dict[str, dict[str, Tensor]]:
        x, targets = batch
        features = self.shared(x)
        losses = {
            name: (head(features) - targets[:, i : i + 1]).square().mean()
            for i, (name, head) in enumerate(self.heads.items())
        }
        return {"loss": losses}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class Data(LightningDataModule):
    """Sums and products of random numbers.

    Args:
        batch_size: Samples per step.
    """

    def __init__(self, batch_size: int = 32) -> None:
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        x = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
        targets = torch.stack([x[:, :2].sum(dim=1), x[:, :2].prod(dim=1)], dim=1)
        return DataLoader(TensorDataset(x, targets), batch_size=self.batch_size)


if __name__ == "__main__":
    LightningCLI(TwoHeads, Data)

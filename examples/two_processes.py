"""Do two processes, each with half of every batch, learn what one process learns?

    python examples/two_processes.py

Lightning starts the second process by running this file again, so the script is written as one
would write it for two GPUs. The comparison comes at the end, on the first process.
"""

import logging
import warnings

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from lightning_jd import JacobianDescent

STEPS, BATCH = 10, 8
QUIET = dict.fromkeys(
    ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
)


class TwoTasks(LightningModule):
    """A trunk with two outputs that want different things of it."""

    def __init__(self, rows: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2)).double()
        self.rows = rows

    def training_step(self, batch: list[Tensor], batch_idx: int) -> dict[str, object]:
        x, y = batch
        errors = (self.net(x) - y).square()  # (b, 2)
        if self.rows == "instances":
            return {"loss": errors.mean(dim=1)}  # one objective per sample
        return {"loss": {"first": errors[:, 0].mean(), "second": errors[:, 1].mean()}}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(STEPS * BATCH, 6, generator=generator, dtype=torch.float64)
        data = TensorDataset(x, torch.stack([x.sum(dim=1), -3 * x[:, 0]], dim=1))
        processes = self.trainer.world_size
        own = DistributedSampler(data, processes, self.trainer.global_rank, shuffle=False)
        return DataLoader(data, BATCH // processes, sampler=own)


def trained(rows: str, aggregator: str, devices: int) -> tuple[TwoTasks, JacobianDescent]:
    module, callback = TwoTasks(rows), JacobianDescent(aggregator)
    strategy = "ddp" if devices > 1 else "auto"
    trainer = Trainer(
        accelerator="cpu",
        devices=devices,
        strategy=strategy,
        max_epochs=1,
        callbacks=[callback],
        **QUIET,
    )
    trainer.fit(module)
    return module, callback


def distance(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    for package in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(package).setLevel(logging.ERROR)
    cases = [("tasks", "upgrad"), ("tasks", "mgda"), ("instances", "upgrad"), ("instances", "mean")]
    together = {case: trained(*case, devices=2) for case in cases}
    first = dist.get_rank() == 0
    dist.destroy_process_group()
    if first:
        print(f"{STEPS} steps on batches of {BATCH}: two processes with {BATCH // 2} samples each")
        print(f"{'rows':<14}{'aggregator':<12}{'moved by':>10}{'one and two differ by':>24}")
        for (rows, aggregator), (module, callback) in together.items():
            alone, _ = trained(rows, aggregator, devices=1)
            moved, difference = distance(alone, TwoTasks(rows)), distance(alone, module)
            count = len(callback.report.names)
            print(f"{count:>2} {rows:<11}{aggregator:<12}{moved:>10.3f}{difference:>24.1e}")
            assert moved > 0.01, "nothing was learned"
            assert difference < 1e-12, "two processes are expected to do what one does"

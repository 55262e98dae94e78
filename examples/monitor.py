"""Do my tasks fight each other? Watch first, then let UPGrad settle it. Seconds on a CPU, no data.

Four tasks share a layer that is too narrow for all of them, and one is much louder than the
others. The sum of the losses, ordinary training, is only watched in the first run; the second one
uses UPGrad. (Where only some parameters are aggregated, "sum" is ordinary training: the others get
the gradient of the sum in any case.) Both write metrics.csv and jd_report.html, a page to open in a
browser.
"""

import argparse
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_jd import JacobianDescent, JDReport
from lightning_jd.report import Run

TASKS = {"position": 1.0, "heading": 1.0, "speed": 0.7, "distance": 2.0}  # name to loudness


class NarrowTrunk(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(16, 3), nn.Tanh())
        self.heads = nn.Linear(3, len(TASKS))

    def training_step(self, batch: list[Tensor]) -> dict[str, dict[str, Tensor]]:
        x, y = batch
        errors = (self.heads(self.trunk(x)) - y).square().mean(dim=0)
        return {"loss": dict(zip(TASKS, errors, strict=True))}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train(aggregator: str, folder: Path) -> Run:
    seed_everything(0, verbose=False)
    x = torch.randn(512, 16)
    y = torch.tanh(x @ torch.randn(16, len(TASKS)) / 3) * torch.tensor(list(TASKS.values()))
    report = JDReport(every_n_steps=1, title=f"Four tasks, {aggregator}")
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=10,
        logger=CSVLogger(folder, name=aggregator),
        callbacks=[JacobianDescent(aggregator, params="trunk.*", log=True), report],
        log_every_n_steps=10,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(NarrowTrunk(), DataLoader(TensorDataset(x, y), batch_size=32))
    print(f"{aggregator}: {trainer.log_dir}/jd_report.html")
    return report.run


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("monitor_runs"))
    folder = parser.parse_args().folder
    watched, settled = train("sum", folder), train("upgrad", folder)
    for name, run in (("sum", watched), ("upgrad", settled)):
        harmed, similarity = run.mean("violation_share"), run.mean("similarity_to_mean")
        print(f"{name}: {harmed:.1%} of the objectives harmed per step, cosine {similarity:.2f}")
    assert watched.mean("violation_share") > 0.1, "the sum is expected to harm tasks"
    assert settled.mean("violation_share") < 0.01, "UPGrad is expected to harm nobody"
    assert settled.mean("similarity_to_mean") < 0.95, "and to do so by another update"

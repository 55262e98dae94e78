"""Does every example count? One objective per image of handwritten digits, UPGrad against the mean.

Trains a small network on 1,024 of scikit-learn's digits with one loss per image, at several
learning rates, prints what each method reaches at its best one, and draws digits.png.
About a minute on two cores; nothing is downloaded.
"""

import argparse
import json
import logging
from dataclasses import dataclass, field
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

from lightning_jd import JacobianDescent
from lightning_jd.errors import NonFiniteError

METHODS = {"mean": "tab:gray", "upgrad": "tab:green"}


class Digits(LightningModule):
    def __init__(self, learning_rate: float) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.network = nn.Sequential(
            nn.Conv2d(1, 16, 3), nn.ELU(), nn.Conv2d(16, 32, 3), nn.MaxPool2d(2), nn.ELU(),
            nn.Flatten(), nn.Linear(128, 64), nn.ELU(), nn.Linear(64, 10),
        )  # fmt: skip

    def training_step(self, batch: list[Tensor]) -> Tensor:
        images, labels = batch
        return F.cross_entropy(self.network(images), labels, reduction="none")  # one loss per image

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate)


@dataclass
class Recorder(Callback):
    """Keeps the mean loss of every step, and how much damage its update does."""

    progress: tqdm
    losses: list[float] = field(default_factory=list)
    damage: list[float] = field(default_factory=list)
    diverged: bool = False

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, outputs, *_) -> None:
        report = next(c for c in trainer.callbacks if isinstance(c, JacobianDescent)).report
        self.losses.append(float(outputs["loss"]))
        decrease = report.gramian @ report.weights  # of each loss, to first order
        self.damage.append(float((-decrease).clamp(min=0).sum() / decrease.clamp(min=0).sum()))
        self.progress.update()

    @property
    def area(self) -> float:
        """Area under the loss curve, the paper's measure of a fast and stable training."""
        return float("inf") if self.diverged else sum(self.losses) / len(self.losses)


def train(
    method: str, learning_rate: float, data: TensorDataset, epochs: int, bar: tqdm
) -> Recorder:
    seed_everything(1, verbose=False)
    recorder = Recorder(bar)
    trainer = Trainer(
        accelerator="cpu", max_epochs=epochs, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
        callbacks=[JacobianDescent(method), recorder],
    )  # fmt: skip
    try:
        trainer.fit(Digits(learning_rate), DataLoader(data, batch_size=32, shuffle=True))
    except NonFiniteError:  # the learning rate is too high: the error names the batch
        recorder.diverged = True
        bar.update(epochs * 32 - len(recorder.losses))
    return recorder


def draw(best: dict[str, tuple[float, Recorder]], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for method, (rate, run) in best.items():
        style = {"color": METHODS[method], "linewidth": 2, "label": f"{method}, lr {rate:.2g}"}
        left.plot(smooth(run.losses), **style)
        right.plot([100 * share for share in smooth(run.damage)], **style)
    left.set(
        xlabel="step",
        ylabel="mean training loss",
        yscale="log",
        title="Loss at the best learning rate",
    )
    right.set(xlabel="step", ylabel="% of the decreases", title="Losses that the update increases")
    for axis in (left, right):
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    figure.savefig(file, dpi=150)


def smooth(values: list[float], window: int = 32) -> list[float]:
    return torch.tensor(values).unfold(0, window, 1).mean(dim=1).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--epochs", type=int, default=8, help="passes over the 1,024 images (default 8)"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("digits.png"), help="the picture to write"
    )
    parser.add_argument("--save", type=Path, help="also write the curves as JSON to this file")
    parser.add_argument(
        "--rates",
        type=float,
        nargs="+",
        default=[0.05, 0.1, 0.2, 0.4],
        help="learning rates to try",
    )
    arguments = parser.parse_args()
    for package in ("lightning.pytorch", "lightning.fabric"):  # eight runs, but one bar
        logging.getLogger(package).setLevel(logging.ERROR)

    torch.set_num_threads(1)  # faster for a network this small
    digits = load_digits()
    images = torch.tensor(digits.images[:1024], dtype=torch.float32)[:, None]
    images = (images - images.mean()) / images.std()
    data = TensorDataset(images, torch.tensor(digits.target[:1024]))

    steps = len(METHODS) * len(arguments.rates) * arguments.epochs * 32
    best: dict[str, tuple[float, Recorder]] = {}
    with tqdm(total=steps, desc="training", unit="step") as bar:
        for method in METHODS:
            runs = {r: train(method, r, data, arguments.epochs, bar) for r in arguments.rates}
            best[method] = min(runs.items(), key=lambda item: item[1].area)
    print(f"\n{'method':<10}{'best lr':>10}{'area':>10}{'last loss':>12}{'damage':>10}")
    for method, (rate, run) in best.items():
        last, damage = sum(run.losses[-32:]) / 32, 100 * sum(run.damage) / len(run.damage)
        print(f"{method:<10}{rate:>10.2g}{run.area:>10.3f}{last:>12.4f}{damage:>9.1f}%")
    print("area: under the loss curve. damage: losses that an update increases, in % of those that")
    print("it decreases (to first order, mean over the steps). Lower is better in all columns.")
    draw(best, arguments.output)
    if arguments.save:
        curves = {
            method: {"learning_rate": rate, "losses": run.losses, "damage": run.damage}
            for method, (rate, run) in best.items()
        }
        arguments.save.write_text(json.dumps(curves))
    print(f"\nPicture: {arguments.output}")


if __name__ == "__main__":
    main()

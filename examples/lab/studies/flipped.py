"""``flipped``: do the table of examples and its columns find wrong labels?"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from typing_extensions import override

from examples.lab.console import progress_bar
from examples.lab.crew import Crew, hired, side_by_side
from examples.lab.data import load, paper_subset
from examples.lab.folders import writable_folder
from examples.lab.report import Report, Value
from examples.lab.statistics import standard_error
from examples.lab.store import Store
from examples.lab.studies._settings import check_epochs, names_of
from examples.lab.trainer import bare_trainer, quiet
from lightning_jd import JacobianDescent
from lightning_jd.aggregators import available
from lightning_jd.errors import ArgumentError, UnknownNameError

#: Column of the table to the sign with which large values mean a wrong label.
SCORES = {"loss": 1.0, "norm": 1.0, "alignment": -1.0, "worse": 1.0}
DATASETS = ("digits", "mnist")
Found = dict[str, list[float]]  # score to its area after each epoch, and "steps so far" alike


@dataclass(frozen=True)
class Run:
    """Everything that decides the outcome of a run."""

    dataset: str
    method: str
    seed: int
    epochs: int
    size: int
    share: float

    @property
    def label(self) -> str:
        """The description in the progress bar."""
        return f"{self.dataset}, {self.method}, seed {self.seed}"


def flipped(
    data: str = "data/mnist",
    datasets: Sequence[str] | str = DATASETS,
    methods: Sequence[str] | str = ("mean", "upgrad"),
    seeds: int = 3,
    epochs: int = 20,
    size: int = 4000,
    share: float = 0.1,
    workers: int | None = None,
    output: str = "results/flipped",
) -> None:
    """Give a tenth of the images a wrong label, and find them by loss, norm and alignment.

    A perceptron with one hidden layer (128 units, Adam with 1e-3, batches of 32, one objective per
    image) trains on digits of scikit-learn and on images of MNIST. After each epoch, the table
    `callback.examples` ranks the images by each of its columns: a score of 1 means that all images
    with a wrong label come first, 0.5 is chance (area under the ROC curve).
    Finished runs are kept in runs.jsonl and not repeated. At the end there is a table
    (flipped.json, flipped.md).

    Args:
        data: The folder with the official files of MNIST; nothing is downloaded.
        datasets: "digits" (1,797 images of scikit-learn) and "mnist".
        methods: Aggregators by name.
        seeds: How many runs, with other images, labels, initial weights and batches.
        epochs: Passes over the images.
        size: The number of images of MNIST.
        share: The share of wrong labels.
        workers: Runs at a time, in processes of one thread each; by default one for each core.
        output: The folder for the results.
    """
    check_epochs(epochs)
    if seeds < 1 or not 0 < share < 1:
        raise ArgumentError(
            f"`seeds` must be positive and `share` between 0 and 1, got {seeds} and {share}."
        )
    for name, known in [*((d, DATASETS) for d in names_of(datasets)),
                        *((m, available("aggregators")) for m in names_of(methods))]:  # fmt: skip
        if name not in known:
            raise UnknownNameError.of("datasets or methods", name, known)
    folder = writable_folder(output)
    runs = [
        Run(dataset, method, seed, epochs, size if dataset == "mnist" else 0, share)
        for dataset in names_of(datasets)
        for method in names_of(methods)
        for seed in range(seeds)
    ]
    store: Store[Run, Found] = Store(
        folder / "runs.jsonl",
        write=lambda run, found: {"run": asdict(run), "found": found},
        read=lambda line: (Run(**line["run"]), line["found"]),
    )
    workers = workers or os.cpu_count() or 1
    with (
        progress_bar(total=len(runs), counts="finished") as announce,
        hired(workers, Trainer, data) as trained,
    ):
        crew = Crew(store, trained, announce, lambda run: run.label, {})
        jobs = [lambda run=run: crew(run) for run in runs]
        found = dict(zip(runs, side_by_side(jobs, workers), strict=True))
    if crew.failures:
        run, what = next(iter(crew.failures.items()))
        raise ArgumentError(f"Every run must finish, but {run.label} ended with {what}.")
    _publish(found, folder)


class Trainer:
    """Trains runs; MNIST is read from a folder."""

    def __init__(self, data: str) -> None:
        self._data = data

    def __call__(self, run: Run) -> Found:
        """Train from scratch, and score the table after each epoch."""
        images, labels = self._images(run)
        torch.manual_seed(run.seed)
        wrong = torch.rand(len(labels)) < run.share
        given = torch.where(wrong, (labels + torch.randint(1, 10, labels.shape)) % 10, labels)
        batches = DataLoader(TensorDataset(images, given), batch_size=32, shuffle=True)
        descent = JacobianDescent(run.method, examples=True)
        scorer = _Scorer(descent, wrong.numpy())
        with quiet():
            bare_trainer(run.epochs, [descent, scorer]).fit(_Classifier(images.shape[1]), batches)
        return scorer.found

    def _images(self, run: Run) -> tuple[Tensor, Tensor]:
        if run.dataset == "digits":
            from sklearn.datasets import load_digits

            pixels, labels = load_digits(return_X_y=True)
            return torch.tensor(pixels).float() / 16, torch.tensor(labels)
        images, labels = paper_subset(load("mnist", self._data), run.seed, run.size)
        return images.flatten(start_dim=1), labels


class _Classifier(L.LightningModule):
    def __init__(self, pixels: int) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(pixels, 128), nn.ReLU(), nn.Linear(128, 10))

    @override
    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        return cross_entropy(self.network(images), labels, reduction="none")

    @override
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class _Scorer(L.Callback):
    """After each epoch, the area of each column: of this epoch, and of the mean so far."""

    def __init__(self, descent: Any, wrong: NDArray[Any]) -> None:
        self._descent, self._wrong = descent, wrong
        self._sums = dict.fromkeys(SCORES, 0.0 * wrong)
        self.found: Found = {f"{name}{end}": [] for name in SCORES for end in ("", " so far")}

    @override
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        table = self._descent.examples
        for name, sign in SCORES.items():
            self._sums[name] = self._sums[name] + sign * table[name]
            self.found[name].append(area(sign * table[name], self._wrong[table["index"]]))
            self.found[f"{name} so far"].append(area(self._sums[name], self._wrong))


def area(scores: NDArray[Any], wrong: NDArray[Any]) -> float:
    """The area under the ROC curve: the chance that a wrong label has the larger score.

    Example:
        >>> area(np.array([0.1, 0.9, 0.5, 0.5]), np.array([False, True, True, False]))
        0.875
    """
    count = int(wrong.sum())
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]  # ties share their mean rank
    return float(ranks[wrong].sum() - count * (count + 1) / 2) / (count * (len(wrong) - count))


def _publish(found: dict[Run, Found], folder: Path) -> None:
    epochs = next(iter(found)).epochs
    shown = sorted({1, min(5, epochs), epochs})
    settings = list(dict.fromkeys((run.dataset, run.method) for run in found))
    rows: list[dict[str, Value]] = []
    for dataset, method in settings:
        runs = [
            areas for run, areas in found.items() if (run.dataset, run.method) == (dataset, method)
        ]
        for name in SCORES:
            row: dict[str, Value] = {"dataset": dataset, "method": method, "score": name}
            for epoch in shown:
                row[f"epoch {epoch}"] = _mean([areas[name][epoch - 1] for areas in runs])
            row["so far"] = _mean([areas[f"{name} so far"][-1] for areas in runs])
            rows.append(row)
    columns = {"dataset": "data", "method": "method", "score": "score"}
    columns |= {f"epoch {epoch}": f"epoch {epoch}" for epoch in shown}
    columns |= {"so far": f"mean of {epochs} epochs"}
    run = next(iter(found))
    seeds = len(found) // len(settings)
    notes = (
        f"Area under the ROC curve of finding the {100 * run.share:g}% of wrong labels, mean of "
        f"{seeds} seed(s) ± standard error. 1: all of them come first; 0.5: chance.",
    )
    Report("flipped", "Wrong labels by the table of examples", columns, rows, notes).publish(folder)


def _mean(areas: Sequence[float]) -> str:
    error = standard_error(areas)
    return f"{statistics.mean(areas):.3f}" + (f" ± {error:.3f}" if error is not None else "")

"""``momentum``: do optimizers that aggregate gradient and momentum train faster?"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from examples.lab.console import progress_bar
from examples.lab.data import load
from examples.lab.device import measured_on, name_of_device
from examples.lab.figure import check_matplotlib, new_figure, save_figure
from examples.lab.folders import writable_folder
from examples.lab.report import Report, Value
from examples.lab.statistics import smooth_mean, standard_error
from examples.lab.store import Store
from examples.lab.studies._momentum import (
    HELD_OUT,
    OPTIMIZERS,
    MomentumOutcome,
    MomentumRun,
    train,
)
from examples.lab.studies._search import COARSE, best_exponent, learning_rate
from examples.lab.studies._settings import check_epochs
from lightning_jd.errors import ArgumentError

AGGREGATORS = ("sum", "upgrad")

_COLUMNS = {
    "optimizer": "optimizer",
    "aggregator": "aggregator",
    "area": "area",
    "error": "standard error",
    "difference": "area, less that of the sum",
    "difference_error": "its standard error",
    "final_loss": "final loss",
    "final_ratio": "final loss / that of the sum",
    "final_lower": "seeds in which it is lower",
    "accuracy": "accuracy",
    "conflict": "steps in conflict",
    "lr": "learning rates",
}


def momentum(
    data: str = "data/mnist",
    dataset: str = "mnist",
    seeds: int = 3,
    epochs: int = 8,
    size: int = 2048,
    device: str = "cpu",
    output: str | None = None,
) -> None:
    """Train with optimizers that add momentum and gradient, and that aggregate them with UPGrad.

    A small convolutional network is trained on the mean cross-entropy of batches of 32, with a
    constant learning rate: for each optimizer, aggregator and seed the one with the least area
    under the training loss, by a walk over a grid of factor 10^(1/3), refined around its best to
    10^(1/12). Finished runs are kept in runs.jsonl and not repeated: Ctrl-C and start again at
    will. At the end there are a table (momentum.json, momentum.md) and a figure (momentum.png).

    Args:
        data: The folder with the official files of the dataset; nothing is downloaded.
        dataset: "svhn", "cifar10", "eurosat", "mnist", "fashion-mnist" or "kuzushiji-mnist".
        seeds: How many reruns, each with other images, initial weights and batches.
        epochs: Passes over the images.
        size: The number of training images.
        device: Where models and data are: "cpu", "cuda", ...; runs of different devices are kept
            apart.
        output: The folder for the results; by default results/momentum-<dataset>.
    """
    if seeds < 1:
        raise ArgumentError(f"`seeds` must be at least 1, got {seeds}.")
    check_epochs(epochs)
    check_matplotlib()  # before the work, not after it
    with measured_on(device):
        folder = writable_folder(output or f"results/momentum-{dataset}")
        split = load(dataset, data)
        store: Store[MomentumRun, MomentumOutcome] = Store(
            folder / "runs.jsonl",
            write=lambda run, outcome: {"run": asdict(run), "outcome": asdict(outcome)},
            read=lambda entry: (MomentumRun(**entry["run"]), MomentumOutcome(**entry["outcome"])),
        )
        first = MomentumRun(dataset, "", "", 1.0, 1, epochs, size, device=name_of_device())
        settings = [
            replace(first, optimizer=name, aggregator=aggregator)
            for name in OPTIMIZERS
            for aggregator in AGGREGATORS
        ]
        with progress_bar(total=len(settings) * (2 + 6 * seeds)) as start:

            def trained(run: MomentumRun) -> MomentumOutcome:
                start(f"{run.optimizer}, {run.aggregator}, seed {run.seed}, lr {run.lr:.2g}")
                if run not in store:
                    store.add(run, train(run, split))
                return store[run]

            best = [_best_runs(setting, seeds, trained) for setting in settings]
        _publish(best, folder)


Best = list[tuple[MomentumRun, MomentumOutcome]]


def _best_runs(
    first: MomentumRun, seeds: int, trained: Callable[[MomentumRun], MomentumOutcome]
) -> Best:
    """The run at the best learning rate of each seed."""
    best: Best = []
    exponent = OPTIMIZERS[first.optimizer][2]
    for seed in range(1, seeds + 1):
        tried: dict[int, tuple[MomentumRun, MomentumOutcome]] = {}

        def area(k: int, seed: int = seed, tried: dict[int, Any] = tried) -> float:
            run = replace(first, seed=seed, lr=learning_rate(k))
            tried[k] = run, trained(run)
            return float(tried[k][1].area)

        # The first seed has told where to look, so a finer walk will do.
        step, halvings = (COARSE // 2, 1) if best else (COARSE, 2)
        exponent = best_exponent(area, start=exponent, step=step, halvings=halvings)
        best.append(tried[exponent])
    return best


def _publish(best: Sequence[Best], folder: Path) -> None:
    sums = {runs[0][0].optimizer: runs for runs in best if runs[0][0].aggregator == "sum"}
    rows = [_row(runs, sums[runs[0][0].optimizer]) for runs in best]
    run = best[0][0][0]
    notes = (
        f"Means over {len(best[0])} seed(s) of {run.size} images, {run.epochs} epochs in batches "
        f"of {run.batch}, each at its own best learning rate. The sum is torch's optimizer. Area: "
        "under the curve of the training loss, per step. Differences are taken seed by seed. Final "
        "loss: of the last epoch; ratios are averaged as logarithms. Accuracy: on "
        f"{HELD_OUT:,} other images. Steps in conflict: in which momentum and gradient have a "
        "negative inner product.",
    )
    title = f"Momentum and gradient, added or aggregated, on {run.dataset}"
    figure = _drawn(best, title, folder / "momentum.png")
    Report("momentum", title, _COLUMNS, rows, notes).publish(folder, figure)


def _row(runs: Best, added: Best) -> dict[str, Value]:
    run = runs[0][0]
    areas = [outcome.area for _, outcome in runs]
    differences = [a - b.area for a, (_, b) in zip(areas, added, strict=True)]
    row: dict[str, Value] = {
        "optimizer": run.optimizer,
        "aggregator": run.aggregator,
        "area": statistics.mean(areas),
        "error": standard_error(areas),
        "final_loss": statistics.mean(_final(runs)),
        "accuracy": statistics.mean(o.accuracy for _, o in runs),
        "conflict": statistics.mean(o.conflict for _, o in runs),
        "lr": ", ".join(f"{run.lr:.2g}" for run, _ in runs),
    }
    if run.aggregator != "sum":
        row["difference"] = statistics.mean(differences)
        row["difference_error"] = standard_error(differences)
        logs = [math.log(a / b) for a, b in zip(_final(runs), _final(added), strict=True)]
        row["final_ratio"] = math.exp(statistics.mean(logs))
        row["final_lower"] = f"{sum(log < 0 for log in logs)} of {len(logs)}"
    return row


def _final(runs: Best) -> list[float]:
    """The mean loss of the last epoch, by seed."""
    steps = len(runs[0][1].losses) // runs[0][0].epochs
    return [statistics.mean(outcome.losses[-steps:]) for _, outcome in runs]


def _drawn(best: Sequence[Best], title: str, path: Path) -> Path:
    """The loss of each optimizer, added and aggregated, one panel each."""
    panels: Mapping[str, list[Best]] = {
        name: [runs for runs in best if runs[0][0].optimizer == name] for name in OPTIMIZERS
    }
    figure = new_figure(3.2 * len(panels), 3.4, title)
    for axes, (name, pair) in zip(
        figure.subplots(1, len(panels), sharey=True), panels.items(), strict=True
    ):
        for runs, colour in zip(pair, ("black", "tab:red"), strict=True):
            curves = [smooth_mean([o.losses]) for _, o in runs if not o.diverged]
            for curve in curves:
                axes.plot(curve, color=colour, alpha=0.25, linewidth=0.8)
            if curves:
                mean = [statistics.mean(values) for values in zip(*curves, strict=True)]
                axes.plot(mean, color=colour, label=runs[0][0].aggregator)
        axes.set(xlabel="step", title=name, yscale="log")
        axes.grid(alpha=0.3, which="both")
        axes.legend(fontsize="small")
    figure.axes[0].set_ylabel("training loss")
    return save_figure(figure, path)

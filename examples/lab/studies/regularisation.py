"""``regularisation``: what the argument ``reg`` of UPGrad does to a training run."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from examples.lab.console import progress_bar
from examples.lab.data import Images, load, paper_subset
from examples.lab.device import measured_on, name_of_device
from examples.lab.figure import check_matplotlib
from examples.lab.folders import writable_folder
from examples.lab.report import Report, Value
from examples.lab.statistics import standard_error
from examples.lab.studies._figure import draw
from examples.lab.studies._run import Outcome, Run
from examples.lab.studies._search import COARSE, best_exponent, learning_rate
from examples.lab.studies._settings import check_epochs
from examples.lab.studies._store import Runs, stored_runs
from examples.lab.studies._training import train
from examples.lab.work.paper import ARCHITECTURES, EPOCHS
from lightning_jd.errors import ArgumentError

#: Setting (None is Mean) to the best run of each seed.
Best = dict[float | None, list[tuple[Run, Outcome]]]

_USUAL_START = -12  # a learning rate of 0.1, near Mean's best on MNIST
_COLUMNS = {
    "setting": "setting",
    "area": "area",
    "error": "standard error",
    "diverged": "diverged",
    "lr": "learning rates",
    "final_loss": "final loss",
    "largest_weight": "largest weight",
    "harmed": "share harmed",
    "worst_cosine": "worst cosine",
}


def regularisation(
    data: str = "data/mnist",
    dataset: str = "mnist",
    regs: Sequence[float] = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 0.0),
    seeds: int = 3,
    epochs: int | None = None,
    size: int = 1024,
    halvings: int = 2,
    device: str = "cpu",
    output: str = "results/regularisation",
) -> None:
    """Train a network of the paper with UPGrad at several regularisations, and with Mean.

    One objective per image, batches of 32, plain SGD, and for each setting and seed the learning
    rate with the least area under the training loss: the best of a walk over a grid of factor
    10^(1/3), refined around it. Later seeds begin with the best of the seed before.
    Finished runs are kept in runs.jsonl and not repeated: Ctrl-C and start again at will. At the
    end there are a table, regularisation.json, regularisation.md and regularisation.png.

    Args:
        data: The folder with the official files of the dataset; nothing is downloaded.
        dataset: "svhn", "cifar10", "eurosat", "mnist", "fashion-mnist" or "kuzushiji-mnist".
        regs: The regularisations, e.g. --regs '[1e-3, 1e-4, 0]'; neighbours side by side save time.
        seeds: How many reruns, each with other images, initial weights and batches.
        epochs: Passes over the images; by default as many as in the paper.
        size: The number of training images.
        halvings: How often the factor between learning rates is refined: 2 is 10^(1/12).
        device: Where models and data are: "cpu", "cuda", ...; runs of different devices are kept
            apart.
        output: The folder for the results.
    """
    if seeds < 1 or not regs:
        raise ArgumentError(
            f"`seeds` and `regs` must not be zero or empty, got {seeds} and {list(regs)}."
        )
    check_epochs(epochs)
    check_matplotlib()  # before the work, not after it
    with measured_on(device):
        store = stored_runs(writable_folder(output) / "runs.jsonl")
        split = load(dataset, data)
        epochs = epochs or EPOCHS[dataset]
        first = Run(dataset, "mean", None, 1.0, 1, epochs, size, device=name_of_device())
        with progress_bar(total=seeds * (1 + len(regs)) * (3 + 2 * halvings)) as start:
            best = _best_runs(first, regs, seeds, halvings, _Trainer(split, store, start))
        _publish(best, dataset, Path(output))


class _Trainer:
    """Gives the outcome of a run, from the store if it is there."""

    def __init__(self, split: Images, store: Runs, start: Callable[[str], None]) -> None:
        self._split, self._store, self._start = split, store, start

    def __call__(self, run: Run) -> Outcome:
        self._start(f"seed {run.seed} {run.label} lr {run.lr:.2g}")
        if run not in self._store:
            images, labels = paper_subset(self._split, run.seed, run.size)
            self._store.add(run, train(run, ARCHITECTURES[run.dataset], images, labels))
        return self._store[run]


def _best_runs(
    first: Run, regs: Sequence[float], seeds: int, halvings: int, trained: Callable[[Run], Outcome]
) -> Best:
    settings = {None: first} | {reg: replace(first, aggregator="upgrad", reg=reg) for reg in regs}
    best: Best = {reg: [] for reg in settings}
    known: dict[float | None, int] = {}  # the best exponent of the last seed
    for seed in range(1, seeds + 1):
        exponent = _USUAL_START
        for reg, setting in settings.items():
            # The last seed has told where to look, so a finer walk will do; without one, the
            # best of the last setting is near.
            fine = reg in known and halvings > 0
            area = _Areas(replace(setting, seed=seed), trained)
            exponent = best_exponent(
                area,
                start=known.get(reg, exponent),
                step=COARSE // 2 if fine else COARSE,
                halvings=halvings - 1 if fine else halvings,
            )
            known[reg] = exponent
            best[reg].append(area.tried[exponent])
    return best


class _Areas:
    """The area under the loss of a setting, as a function of the exponent of its rate."""

    def __init__(self, setting: Run, trained: Callable[[Run], Outcome]) -> None:
        self._setting, self._trained = setting, trained
        self.tried: dict[int, tuple[Run, Outcome]] = {}

    def __call__(self, exponent: int) -> float:
        run = replace(self._setting, lr=learning_rate(exponent))
        self.tried[exponent] = run, self._trained(run)
        return self.tried[exponent][1].area


def _publish(best: Best, dataset: str, output: Path) -> None:
    rows = [_row(runs) for runs in best.values()]
    seeds = len(next(iter(best.values())))
    notes = (
        f"Means over {seeds} seed(s), each at its own best learning rate. Area: under the curve of "
        "the training loss, per step. Final loss: of the last epoch. Largest weight: of any step, "
        "where Mean gives 1. Share harmed: of the images of a batch whose loss the step increases, "
        "to first order. Worst cosine: between the update and the gradient of an image, any step.",
    )
    title = f"UPGrad on {dataset.upper()}: what the regularisation does to training"
    report = Report("regularisation", title, _COLUMNS, rows, notes)
    report.publish(output, draw(best, title, output / "regularisation.png"))


def _row(runs: list[tuple[Run, Outcome]]) -> dict[str, Value]:
    areas = [outcome.area for _, outcome in runs]
    finished = [outcome for _, outcome in runs if outcome.finished]
    row: dict[str, Value] = {
        "setting": runs[0][0].label,
        "area": None if len(finished) < len(runs) else statistics.mean(areas),
        "diverged": len(runs) - len(finished),
        "error": standard_error(areas),
        "lr": ", ".join(f"{run.lr:.2g}" for run, _ in runs),
    }
    if not finished:
        return row
    return row | {
        "final_loss": statistics.mean(statistics.mean(o.losses[-32:]) for o in finished),
        "largest_weight": max(max(o.largest_weights) for o in finished),
        "harmed": statistics.mean(statistics.mean(o.harmed) for o in finished),
        "worst_cosine": min(min(o.worst_cosines) for o in finished),
    }

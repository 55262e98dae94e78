"""``front``: a comparison over preferences, whose results are points of the trade-off."""

from __future__ import annotations

import inspect
import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import torch
from typing_extensions import override

from lightning_jd.aggregators import Constant, Sum, available, resolve
from lightning_jd.errors import ArgumentError
from lightning_jd.metrics import hypervolume
from lightning_jd.report import Point, Table, front_page, mean_and_error
from lightning_jd.surfaces._namespace import surfaces_for
from lightning_jd.surfaces._runs import Job, Outcome, Plan, own_seed, package_of, run_all
from lightning_jd.surfaces.comparison import (
    Comparison,
    folder_of,
    losses_at_end,
    plan_of,
    seeds_of,
)

Preference = dict[str, float]


@dataclass(frozen=True)
class Place:
    """What a label of a front stands for.

    Attributes:
        method: The name of the method; empty for the training of one task.
        preference: The weight of each task.
    """

    method: str
    preference: Preference

    @property
    def label(self) -> str:
        """The name of its runs."""
        if not self.method:
            return "only " + max(self.preference, key=lambda task: self.preference[task])
        return f"{self.method} {'/'.join(f'{share:.2g}' for share in self.preference.values())}"


class Front(Comparison):
    """The runs of :func:`front`: points, hypervolumes and a page.

    Args:
        outcomes: The runs.
        places: What each label stands for.
        objectives: The validation metrics that are the axes; empty for the losses at the end.
        higher_is_better: Whether they are to be high.
        reference: The corner of the hypervolume; ``None`` is the worst of each objective.
    """

    def __init__(
        self,
        outcomes: Sequence[Outcome],
        places: Mapping[str, Place],
        objectives: Sequence[str] = (),
        higher_is_better: bool = False,
        reference: Sequence[float] | None = None,
    ) -> None:
        super().__init__(outcomes)
        self.places = dict(places)
        tasks = next(iter(places.values())).preference
        self.objectives = list(objectives) or [f"loss {task}" for task in tasks]
        self.higher_is_better = higher_is_better
        self._metrics = list(objectives)
        self._reference = reference
        for outcome in self.outcomes:
            if not outcome.error and (missing := set(objectives) - set(outcome.metrics)):
                raise ArgumentError(
                    f"`objectives` must be validation metrics that the module logs "
                    f"({sorted(outcome.metrics)}), got {sorted(missing)}."
                )

    def point(self, outcome: Outcome) -> list[float]:
        """The values of the objectives of a run."""
        if self._metrics:
            return [outcome.metrics[name] for name in self._metrics]
        ends = losses_at_end(outcome.run)
        return [ends[task] for task in self.places[outcome.label].preference]

    def points(self) -> dict[str, list[list[float]]]:
        """Label to the points of its seeds."""
        return {label: [self.point(o) for o in runs] for label, runs in self.by_label().items()}

    def hypervolumes(self) -> dict[str, list[float]]:
        """Method to the hypervolume of its points for each seed.

        They are shares of the box between the best value of each objective and the reference, over
        all runs.
        """
        done = [outcome for outcome in self.outcomes if not outcome.error]
        every = torch.tensor([self.point(outcome) for outcome in done], dtype=torch.float64)
        low, high = every.min(dim=0).values, every.max(dim=0).values
        best, worst = (high, low) if self.higher_is_better else (low, high)
        corner = worst if self._reference is None else torch.tensor(self._reference).double()
        box = (best - corner).abs().prod().clamp(min=1e-300)
        found: dict[str, list[float]] = {}
        for method in self._methods():
            for seed in dict.fromkeys(outcome.seed for outcome in done):
                mine = [
                    self.point(outcome)
                    for outcome in done
                    if outcome.seed == seed and self.places[outcome.label].method == method
                ]
                if mine:
                    volume = hypervolume(torch.tensor(mine), corner, self.higher_is_better)
                    found.setdefault(method, []).append(float(volume / box))
        return found

    @property
    def summary(self) -> Table:
        """Hypervolume and best value of each objective for each method, and the single tasks."""
        volumes, points, best = self.hypervolumes(), self.points(), min
        if self.higher_is_better:
            best = max
        rows = []
        for method in self._methods():
            mine = [points[p.label] for p in self._of(method) if p.label in points]
            if mine:
                means = [[statistics.fmean(axis) for axis in zip(*runs)] for runs in mine]  # noqa: B905
                ends = [mean_and_error([best(axis)]) for axis in zip(*means, strict=True)]
                rows.append([method, mean_and_error(volumes.get(method, [])), *ends])
        for place in self._of(""):
            if place.label in points:
                axes = zip(*points[place.label], strict=True)
                rows.append([place.label, "-", *(mean_and_error(axis) for axis in axes)])
        return Table(["method", "hypervolume", *(f"best {n}" for n in self.objectives)], rows)

    @override
    def page(self, title: str = "Front") -> str:
        """Summary, points and all runs as one self-contained HTML page."""
        series = {method: self._drawn(method) for method in self._methods()}
        views = [
            (*pair, {name: [_seen(p, *pair) for p in line] for name, line in series.items()},
             [_seen(p, *pair) for p in self._drawn("")])
            for pair in combinations(range(len(self.objectives)), 2)
        ]  # fmt: skip
        named = [
            (lines, corners, self.objectives[i], self.objectives[j])
            for i, j, lines, corners in views
        ]
        better = "Up and right" if self.higher_is_better else "Down and left"
        return front_page(title, self.summary, named, self.table, better)

    @override
    def __repr__(self) -> str:
        """The summary."""
        errors = [f"{label}  {text}" for label, text in self.errors().items()]
        return "\n".join([self.summary.text(), *errors])

    def _methods(self) -> list[str]:
        return list(dict.fromkeys(p.method for p in self.places.values() if p.method))

    def _of(self, method: str) -> list[Place]:
        return [place for place in self.places.values() if place.method == method]

    def _drawn(self, method: str) -> list[tuple[str, list[float], list[float]]]:
        """Label, means and standard errors of the points of a method."""
        points, found = self.points(), []
        for place in self._of(method):
            if runs := points.get(place.label):
                axes = list(zip(*runs, strict=True))
                n = len(runs)
                errors = [statistics.stdev(a) / math.sqrt(n) if n > 1 else 0.0 for a in axes]
                found.append((place.label, [statistics.fmean(axis) for axis in axes], errors))
        return found


def _seen(point: tuple[str, list[float], list[float]], i: int, j: int) -> Point:
    label, means, errors = point
    return Point(means[i], means[j], errors[i], errors[j], label)


def front(
    methods: str | Sequence[Any],
    module: Any,
    data: Any = None,
    validation: Any = None,
    *,
    preferences: int | Sequence[Sequence[float] | Mapping[str, float]] = 5,
    objectives: Sequence[str] = (),
    higher_is_better: bool = False,
    reference: Sequence[float] | None = None,
    max_epochs: int = 10,
    trainer: Mapping[str, Any] | Callable[..., Any] | None = None,
    seeds: int | Sequence[int] = 1,
    folder: str | Path | None = None,
    workers: int | None = None,
    **options: Any,
) -> Front:
    """Train a module with several preferences, and with each task alone: the front of the tasks.

    The runs are those of :func:`compare`, on all cores at a time: the same seed, initial
    parameters, data order and budget for each, kept in a folder, so that what was interrupted goes
    on.

    Args:
        methods: Methods with a preference (``"upgrad"``, ``"stch"``), or ``"sum"`` for a sweep of
            weights, by name or as dicts with arguments.
        module: See :func:`compare`.
        data: See :func:`compare`.
        validation: See :func:`compare`.
        preferences: Their number, evenly spread over the simplex; or one weight per task for each,
            in the order of the losses or by name.
        objectives: The validation metrics that are the axes, in any number; the losses of the tasks
            at the end of training by default.
        higher_is_better: Whether they are to be high, as accuracies are.
        reference: The corner of the hypervolume; by default the worst value of each objective.
        max_epochs: See :func:`compare`.
        trainer: See :func:`compare`.
        seeds: See :func:`compare`.
        folder: See :func:`compare`.
        workers: How many runs at a time; one for each core by default, and one on an accelerator.
        **options: Of ``JacobianDescent``.

    Returns:
        The front: ``print`` it, ``write("front.html")`` it, or use ``points()`` and
        ``hypervolumes()``.

    Raises:
        ArgumentError: If an argument is invalid, or ``folder`` holds runs with other settings.
        UnknownNameError: If a method is unknown.
    """
    plan = plan_of(module, data, validation, max_epochs, trainer, options)
    return front_of(
        plan, methods, preferences, seeds, folder, workers,
        objectives=objectives, higher_is_better=higher_is_better, reference=reference,
    )  # fmt: skip


def front_of(
    plan: Plan,
    methods: str | Sequence[Any],
    preferences: int | Sequence[Sequence[float] | Mapping[str, float]],
    seeds: int | Sequence[int],
    folder: str | Path | None,
    workers: int | None,
    **axes: Any,
) -> Front:
    """The front of a plan; see :func:`front`."""
    specs = {_name(spec): spec for spec in ([methods] if isinstance(methods, str) else methods)}
    takers = {name: _taker(spec) for name, spec in specs.items()}
    every = seeds_of(seeds)
    tasks = tasks_of_plan(plan, every[0])
    chosen = _preferences(preferences, tasks)
    jobs, places = [], {}
    for task in tasks:
        place = Place("", {other: float(other == task) for other in tasks})
        weights = list(place.preference.values())
        places[place.label] = place
        jobs += [Job(place.label, {"name": "constant", "weights": weights}, s) for s in every]
    for name, taker in takers.items():
        for preference in chosen:
            place = Place(name, preference)
            places[place.label] = place
            jobs += [Job(place.label, taker(preference), seed) for seed in every]
    if workers is None:
        workers = 1 if torch.accelerator.is_available() else os.cpu_count() or 1
    with folder_of(folder) as path:
        return Front(run_all(plan, jobs, path, workers), places, **axes)


def _name(spec: Any) -> str:
    return str(resolve(spec).name)


def _taker(spec: Any) -> Any:
    """A function from a preference to the method with it.

    Raises:
        ArgumentError: If the method takes no preference.
    """
    own = dict(spec) if isinstance(spec, Mapping) else {"name": spec}
    kind = available().get(own["name"])
    if kind in (Sum, Constant):
        return lambda preference: {"name": "constant", "weights": list(preference.values())}
    if kind is None or "preference" not in inspect.signature(kind).parameters:
        raise ArgumentError(
            "`methods` of a front must take a `preference`, or be 'sum' for a sweep of weights, "
            f"got {own['name']!r}. Those are {_with_preference()}."
        )
    return lambda preference: {**own, "preference": preference}


def _with_preference() -> list[str]:
    return [n for n, k in available().items() if "preference" in inspect.signature(k).parameters]


class _Known(BaseException):
    """The tasks are known: the run is over. Nothing of the module must catch this."""


def tasks_of_plan(plan: Plan, seed: int) -> list[str]:
    """The names of the tasks, from one step."""

    def stop(*_: Any) -> None:
        if descent.report is not None:  # not in the middle of a step
            raise _Known

    with own_seed(seed), suppress(_Known):
        trainer, module, data = plan.build(seed)
        surfaces = surfaces_for(module)
        descent = plan.descent(Job("mean", "mean", seed), surfaces, trainer, module)
        callback = import_module(package_of(surfaces)).Callback
        probe = type("Probe", (callback,), {"on_train_batch_end": stop})()
        trainer.callbacks[:] = [descent, probe]
        trainer.fit(module, **data)
    session = descent._session
    names = session.seen.names if session is not None and session.seen is not None else ()
    if not 2 <= len(names) <= 8 or session.seen.kind != "tasks":
        raise ArgumentError(
            "A front needs 2 to 8 named losses from `training_step`, got one per example or none. "
            "Return a dict of losses, or set split='terms'."
        )
    return list(names)


def _preferences(
    preferences: int | Sequence[Sequence[float] | Mapping[str, float]], tasks: Sequence[str]
) -> list[Preference]:
    """Preferences by task, each with the sum 1."""
    if isinstance(preferences, int):
        preferences = spread(preferences, len(tasks))
    found = []
    for given in preferences:
        shares = (
            dict(given) if isinstance(given, Mapping) else dict(zip(tasks, given, strict=False))
        )
        is_complete = len(given) == len(tasks) and set(shares) == set(tasks)
        if not is_complete or min(shares.values()) <= 0:
            raise ArgumentError(
                f"`preferences` must have one positive weight for each of {list(tasks)}, got "
                f"{given!r}."
            )
        total = sum(shares.values())
        found.append({task: shares[task] / total for task in tasks})
    if not found:
        raise ArgumentError("`preferences` must be at least one, got none.")
    return found


def spread(count: int, tasks: int) -> list[list[float]]:
    """At least ``count`` points inside of the simplex, on a regular grid.

    Example:
        >>> spread(3, 2)
        [[0.25, 0.75], [0.5, 0.5], [0.75, 0.25]]
        >>> len(spread(4, 3))
        6
    """
    parts = next(n for n in range(tasks, 1000) if math.comb(n - 1, tasks - 1) >= count)
    found = []
    for cuts in combinations(range(1, parts), tasks - 1):
        edges = [0, *cuts, parts]
        found.append([(b - a) / parts for a, b in pairwise(edges)])
    return found

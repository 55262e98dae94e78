"""What ``mtl`` leaves behind: a table, and what follows from it in words."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from examples.lab.data.multitask import Task
from examples.lab.report import Value
from examples.lab.statistics import standard_error
from examples.lab.studies.multitask._trial import SINGLE, Result, Trial, mean_of
from lightning_jd.aggregators import available
from lightning_jd.metrics import delta_m, mean_rank

Found = Sequence[tuple[Trial, Result]]
#: Plain training of the mean loss; a tuned one is what every method has to beat.
PLAIN = "equal"
_SINGLE_LABEL = "single task"
_CHANCE = 0.05


@dataclass(frozen=True)
class Comparison:
    """The finished runs of all methods.

    Attributes:
        tasks: What is predicted.
        single: Task to the runs of a network for this task alone, one per seed.
        methods: Method to its runs, one per seed.
    """

    tasks: tuple[Task, ...]
    single: Mapping[str, Found]
    methods: Mapping[str, Found]

    @property
    def names(self) -> list[str]:
        """Of the tasks."""
        return [task.name for task in self.tasks]

    @property
    def better(self) -> list[bool]:
        """Which way is better, by task."""
        return [task.higher_is_better for task in self.tasks]

    def baseline(self) -> Tensor:
        """The metric of each task alone, mean over seeds, shape (k,)."""
        return torch.tensor([_mean(self.single[name], name) for name in self.names])

    def values(self, method: str) -> Tensor:
        """The metrics of a method, shape (seeds, k); NaN for a run that failed."""
        runs = {n: self.single[n] if method == SINGLE else self.methods[method] for n in self.names}
        nan = float("nan")
        columns = [[r.test.get(name, nan) for _, r in found] for name, found in runs.items()]
        return torch.tensor(columns, dtype=torch.float64).T

    def drops(self, method: str) -> list[float]:
        """Δm of each seed, in percent; positive is worse than single-task training."""
        found: list[float] = delta_m(self.values(method), self.baseline(), self.better).tolist()
        return found

    def ranks(self) -> dict[str, float]:
        """The mean rank of each method among all, by the means over seeds."""
        together = torch.stack([self.values(method).mean(dim=0) for method in self.methods])
        return dict(zip(self.methods, mean_rank(together, self.better).tolist(), strict=True))


def _mean(found: Found, task: str) -> float:
    return statistics.mean(result.test.get(task, float("nan")) for _, result in found)


def label_of(method: str) -> str:
    """What tables and figures call a method.

    Example:
        >>> label_of("equal"), label_of("upgrad"), label_of("uw")
        ('Equal (plain)', 'UPGrad', 'UW')
    """
    if method == SINGLE:
        return _SINGLE_LABEL
    name = available()[method].__name__
    return f"{name} (plain)" if method == PLAIN else name


def columns_of(tasks: Sequence[Task]) -> dict[str, str]:
    """Key of a row to the heading of its column."""
    metrics = {task.name: f"{task.name}, {task.metric}" for task in tasks}
    return {"method": "method", **metrics, **_SUMMARY}


_SUMMARY = {
    "delta_m": "Δm %",
    "error": "standard error",
    "rank": "mean rank",
    "worst": "worst task %",
    "conflict": "pairs in conflict",
    "harmed": "tasks harmed",
    "steps": "plain steps",
    "lr": "rate",
    "decay": "decay",
    "failed": "failed seeds",
}
BRIEF = {"method": "method", **_SUMMARY}


def rows_of(comparison: Comparison) -> list[dict[str, Value]]:
    """Single-task training first, then the methods, the best Δm first."""
    names = comparison.names
    first: dict[str, Value] = {"method": _SINGLE_LABEL, "delta_m": 0.0}
    first["error"] = standard_error(comparison.drops(SINGLE))
    for name in names:
        first |= _metric(name, [r.test.get(name) for _, r in comparison.single[name]])
    first["lr"] = "; ".join(_rates(comparison.single[name]) for name in names)
    first["decay"] = "; ".join(_decays(comparison.single[name]) for name in names)
    ranks = comparison.ranks() if comparison.methods else {}
    plain = _seconds(comparison.methods.get(PLAIN, ()))
    rows = [_row(comparison, method, ranks[method], plain) for method in comparison.methods]
    return [first, *sorted(rows, key=_place)]


def _place(row: Mapping[str, Value]) -> float:
    found = row.get("delta_m")
    return float("inf") if found is None else float(found)


def _row(comparison: Comparison, method: str, rank: float, plain: float | None) -> dict[str, Value]:
    found = comparison.methods[method]
    results = [result for _, result in found]
    finished = [result for result in results if not result.failed]
    drops = [drop for drop in comparison.drops(method) if drop == drop]
    row: dict[str, Value] = {"method": label_of(method), "failed": len(found) - len(finished)}
    row |= {"rank": rank, "lr": _rates(found), "decay": _decays(found)}
    if not finished:
        return row
    for name in comparison.names:
        row |= _metric(name, [result.test.get(name) for result in finished])
    row |= {"delta_m": statistics.mean(drops), "error": standard_error(drops)}
    row["worst"] = max(worst_drops(comparison, method).values())
    row["conflict"] = mean_of([result.conflict for result in finished])
    row["harmed"] = mean_of([result.harmed for result in finished])
    seconds = _seconds(found)
    row["steps"] = None if plain is None or seconds is None else seconds / plain
    return row


def _rates(found: Found) -> str:
    """The learning rates of the seeds, or the only one."""
    return ", ".join(dict.fromkeys(f"{trial.lr:.1g}" for trial, _ in found))


def _decays(found: Found) -> str:
    return ", ".join(dict.fromkeys(f"{trial.weight_decay:g}" for trial, _ in found))


def worst_drops(comparison: Comparison, method: str) -> dict[str, float]:
    """Task to how much worse than single-task training it is, in percent, mean over seeds."""
    means = comparison.values(method).nanmean(dim=0)
    pairs = zip(comparison.tasks, means, comparison.baseline(), strict=True)
    return {
        task.name: float(delta_m(value[None], base[None], task.higher_is_better))
        for task, value, base in pairs
    }


def _metric(name: str, values: Sequence[float | None]) -> dict[str, Value]:
    known = [value for value in values if value is not None]
    return {name: mean_of(list(values)), f"{name} error": standard_error(known)}


def _seconds(found: Found) -> float | None:
    known = [r.seconds_per_step for _, r in found if r.seconds_per_step == r.seconds_per_step]
    return statistics.median(known) if known else None


def conclusions(comparison: Comparison) -> list[str]:
    """Who is better or worse than single-task and than plain training, beyond the noise."""
    drops = {method: comparison.drops(method) for method in (SINGLE, *comparison.methods)}
    known = {m: d for m, d in drops.items() if len(d) > 1 and all(x == x for x in d)}
    sentences = []
    for rival, name in ((SINGLE, "single-task training"), (PLAIN, "the tuned plain sum")):
        if rival in known:
            others = [method for method in known if method not in (SINGLE, rival)]
            verdicts = {method: apart(known[method], known[rival]) for method in others}
            mean = round(statistics.mean(known[rival]), 2) + 0.0  # the sum turns -0.0 into 0.0
            sentences.append(_told(f"{name} ({mean:.2f} %)", verdicts))
    return sentences


def apart(a: Sequence[float], b: Sequence[float]) -> int:
    """-1 if the mean of a is lower than that of b, +1 if higher, 0 if that may be chance.

    Chance is what Welch's t-test finds with a probability of 5 % or more.

    Example:
        >>> apart([1.0, 1.1, 0.9], [2.0, 2.1, 1.9]), apart([1.0, 3.0, 2.0], [2.0, 2.1, 1.9])
        (-1, 0)
    """
    difference = statistics.mean(a) - statistics.mean(b)
    spread = (statistics.variance(a) / len(a), statistics.variance(b) / len(b))
    if difference == 0.0:
        return 0
    if sum(spread) > 0.0:
        from scipy.stats import t  # type: ignore[import-untyped]

        freedom = sum(spread) ** 2 / sum(
            s**2 / (len(x) - 1) for s, x in zip(spread, (a, b), strict=True)
        )
        if 2 * t.sf(abs(difference) / sum(spread) ** 0.5, freedom) >= _CHANCE:
            return 0
    return 1 if difference > 0 else -1


def _told(what: str, verdicts: Mapping[str, int]) -> str:
    groups = {-1: "better", 1: "worse", 0: "not significantly different"}
    parts = []
    for verdict, word in groups.items():
        names = [label_of(method) for method, found in verdicts.items() if found == verdict]
        parts.append(f"{word}: {', '.join(names) or 'none'}")
    return f"Δm against {what}, by Welch's test over seeds at 5 %: {'; '.join(parts)}."

"""Two independent samples of every task, for methods that need them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lightning_jd.aggregators._step import Step

#: What is added to the name of a task for its rows of the first and of the second sample.
SUFFIXES = (" (first half)", " (second half)")


@dataclass(frozen=True)
class Halves:
    """Which row of a step is which sample of which task.

    Attributes:
        names: The tasks.
        first: Row of the first sample of each task.
        second: Row of the second sample; the same ones if there is one Jacobian for both, and none
            if there is no second sample in this step.

    Example:
        >>> Halves.of(Step(("a (first half)", "a (second half)"))).names
        ('a',)
    """

    names: tuple[str, ...]
    first: tuple[int, ...]
    second: tuple[int, ...]

    @classmethod
    def of(cls, step: Step) -> Halves:
        """Read the names of a step."""
        rows = {name: i for i, name in enumerate(step.names)}
        tasks = dict.fromkeys(_task(name) for name in step.names)
        if set(tasks) == set(rows):  # no samples at all
            both = tuple(rows.values())
            return cls(step.names, both, both)
        complete = tuple(task for task in tasks if all(task + end in rows for end in SUFFIXES))
        if not complete:  # one sample only
            return cls(tuple(tasks), tuple(rows.values()), ())
        first, second = (tuple(rows[task + end] for task in complete) for end in SUFFIXES)
        return cls(complete, first, second)

    def between(self, gramian: Tensor) -> Tensor | None:
        """The inner products of the first with the second samples; ``None`` without the second."""
        if not self.second:
            return None
        return gramian[list(self.first)][:, list(self.second)]

    def spread(self, weights: Tensor) -> Tensor:
        """The weights of all rows, from those of the tasks: each sample counts half."""
        if self.first == self.second or not self.second:
            return weights
        rows = weights.new_zeros(2 * len(self.names))
        rows[list(self.first)] = weights / 2
        rows[list(self.second)] = weights / 2
        return rows


def _task(name: str) -> str:
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name

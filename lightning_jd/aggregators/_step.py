"""What a step tells a method besides the gradients."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

from lightning_jd.errors import ArgumentError
from lightning_jd.linalg import in_float64

#: Rows without names of their own: the same position holds other data in the next batch.
NAMELESS = ("instances", "instances_tasks")


@dataclass(frozen=True)
class Step:
    """The objectives of one step, in the order of the rows.

    It has no step number: a stateful method counts its own steps, per parameter group, and saves
    the count (:class:`~lightning_jd.aggregators.Memory`).

    Attributes:
        names: One name per objective.
        values: The loss values, shape (m,), detached; ``None`` if they are unknown.
        kind: What a row is: ``"tasks"``, ``"instances"``, ``"instances_tasks"`` or ``"ranks"``;
            empty if it is unknown.
        group: The group of parameters that the rows belong to; ``None`` without groups.
        columns: The number of tasks per instance, for ``"instances_tasks"``.
    """

    names: tuple[str, ...]
    values: Tensor | None = None
    kind: str = "tasks"
    group: Hashable = None
    columns: int = 1

    @classmethod
    def bare(cls, m: int) -> Step:
        """A step with m objectives of unknown kind, named by position, without loss values."""
        return cls(tuple(map(str, range(m))), kind="")

    def losses_or_ones(self, like: Tensor) -> Tensor:
        """The losses in the dtype and on the device of ``like``; ones if they are unknown."""
        if self.values is None:
            return like.new_ones(len(self.names))
        return self.values.detach().to(like)

    def losses(self, method: str) -> Tensor:
        """The losses in float64.

        Args:
            method: The name of the method, for the error message.

        Raises:
            ArgumentError: If the loss values are unknown.
        """
        if self.values is None:
            raise ArgumentError(
                f"{method} requires the loss values, got gradients only. Use it in a training step "
                "(`lightning_jd.backward`, JacobianDescent), or pass a `Step` with `values`."
            )
        return in_float64(self.values.detach())


@lru_cache(maxsize=64)  # most steps are like the one before
def tasks_of(names: tuple[str, ...]) -> tuple[int, ...]:
    """The number of the task of each row that is named ``"instance/task"``; 0 if none is.

    Example:
        >>> tasks_of(("0/a", "0/b", "1/a", "1/b"))
        (0, 1, 0, 1)
    """
    tasks = [name.partition("/")[2] for name in names]
    numbers = {task: k for k, task in enumerate(dict.fromkeys(tasks))}
    return tuple([numbers[task] for task in tasks])

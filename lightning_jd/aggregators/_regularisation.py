"""What the regularisation of a dual-cone program is relative to, by the kind of the rows."""

from functools import lru_cache
from typing import Literal

from lightning_jd.aggregators._step import NAMELESS, Step
from lightning_jd.errors import UnknownNameError
from lightning_jd.linalg import RelativeTo

#: ``"auto"`` is decided by the kind of the rows of each step.
Relative = Literal["auto", "row", "trace"]


def checked_relative_to(relative_to: Relative) -> Relative:
    """Return the argument, or raise unless it is one of the three."""
    if relative_to not in ("auto", "row", "trace"):
        raise UnknownNameError.of("relative_to", str(relative_to), ["auto", "row", "trace"])
    return relative_to


def scale_of_reg(relative_to: Relative, step: Step | None) -> RelativeTo:
    """The scale of ``reg`` for the rows of a step.

    The length of the gradient of a task is a matter of units: nobody may drown, so each row has its
    own scale. The length of the gradient of an instance tells how well it is learned already: one
    that is learned must not veto, so all rows have the scale of their trace, task by task.

    Args:
        relative_to: The argument of the aggregator.
        step: What the rows are; ``None`` if it is unknown, for the trace, as in the paper.

    Example:
        >>> scale_of_reg("auto", Step(("depth", "normals")))
        'row'
        >>> scale_of_reg("auto", Step(("0", "1"), kind="instances"))
        'trace'
        >>> scale_of_reg("auto", Step(("0/0", "0/1", "1/0", "1/1"), kind="instances_tasks"))
        (0, 1, 0, 1)
    """
    if relative_to != "auto":
        return relative_to
    if step is None or not step.kind:
        return "trace"
    return _by_task(step.names) if step.kind in NAMELESS else "row"


@lru_cache(maxsize=64)  # most steps are like the one before
def _by_task(names: tuple[str, ...]) -> RelativeTo:
    """The task of each row that is named ``"instance/task"``; one task if none is named so."""
    tasks = [name.partition("/")[2] for name in names]
    numbers = {task: k for k, task in enumerate(dict.fromkeys(tasks))}
    return "trace" if len(numbers) == 1 else tuple(numbers[task] for task in tasks)

"""Which way is better, for metrics of several tasks."""

from collections.abc import Callable, Sequence
from functools import wraps

import torch
from torch import Tensor
from torch.nn import Module
from torchmetrics import Metric
from typing_extensions import override

from lightning_jd.errors import ShapeError
from lightning_jd.linalg import in_float64

Better = bool | Sequence[bool]


def as_float64(numbers: Sequence[float] | Tensor) -> Tensor:
    """Numbers of the user in float64; those of a device without it come to the host."""
    if isinstance(numbers, Tensor):
        return in_float64(numbers)
    return torch.tensor(numbers, dtype=torch.float64)


def towards_better(higher_is_better: Better, tasks: int) -> Tensor:
    """+1 for a task whose metric is to be high, -1 for one whose metric is to be low, shape (k,).

    Raises:
        ShapeError: If there is not one entry per task.
    """
    if isinstance(higher_is_better, bool):
        higher_is_better = [higher_is_better] * tasks
    if len(higher_is_better) != tasks:
        raise ShapeError(
            f"`higher_is_better` must be one bool or one for each of the {tasks} tasks, got "
            f"{len(higher_is_better)}."
        )
    return torch.tensor([1.0 if high else -1.0 for high in higher_is_better], dtype=torch.float64)


class Narrowing(Metric):
    """A metric whose states are in float64, and in float32 on a device that has no other."""

    @override
    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> Module:
        @wraps(fn)  # torchmetrics knows changes of the type by the function's name
        def narrowing(state: Tensor) -> Tensor:
            try:
                return fn(state)
            except TypeError:
                if state.dtype != torch.float64:
                    raise
                return fn(state.float())

        return super()._apply(narrowing, exclude_state)


def check_tasks(name: str, values: Tensor, tasks: int | None = None) -> None:
    """Make sure that the last dimension of a tensor is that of the tasks.

    Raises:
        ShapeError: If it is missing, empty, or of another size.
    """
    if values.ndim < 1 or values.shape[-1] < 1 or (tasks is not None and values.shape[-1] != tasks):
        wanted = "the tasks" if tasks is None else f"the {tasks} tasks"
        raise ShapeError(
            f"The last dimension of `{name}` must be that of {wanted}, got the shape "
            f"{tuple(values.shape)}."
        )

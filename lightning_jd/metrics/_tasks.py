"""Metrics that compare methods by the metrics of their tasks."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Module
from torchmetrics import Metric
from typing_extensions import override

from lightning_jd.errors import ArgumentError, ShapeError
from lightning_jd.linalg import in_float64, placed

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


Convention = Literal["drop", "gain"]


def delta_m(
    values: Tensor,
    baseline: Tensor | Sequence[float],
    higher_is_better: Better,
    convention: Convention = "drop",
) -> Tensor:
    r"""Mean relative change of the task metrics against single-task training, in percent.

    .. math:: \Delta_m = \frac{100}{k} \sum_{i=1}^{k} (-1)^{\delta_i} \frac{M_i - B_i}{|B_i|}

    where :math:`M_i` is the metric of task i, :math:`B_i` that of a network trained for this task
    alone. For a *drop* (Navon et al.), :math:`\delta_i = 1` if higher is better, so negative values
    are better than single-task training. For a *gain* (Maninis et al.), the sign is reversed.

    Args:
        values: The metrics of each task, shape (..., k).
        baseline: The metrics of single-task training, shape (k,), all non-zero.
        higher_is_better: One bool for all tasks, or one per task.
        convention: ``"drop"`` or ``"gain"``.

    Returns:
        Shape (...).

    Raises:
        ShapeError: If the shapes do not match.
        ArgumentError: If an entry of the baseline is zero, or the convention is unknown.

    Example:
        An accuracy that falls from 0.8 to 0.6 is 25 % worse, an error that falls from 4 to 3 is
        25 % better, and one that rises from 2 to 3 is 50 % worse:

        >>> delta_m(torch.tensor([0.6, 3.0, 3.0]), [0.8, 4.0, 2.0], [True, False, False]).item()
        16.66...

    References:
        Maninis, Radosavovic, Kokkinos: *Attentive Single-Tasking of Multiple Tasks*, CVPR 2019;
        Navon et al.: *Multi-Task Learning as a Bargaining Game*, ICML 2022.
    """
    check_tasks("values", values)
    metrics, base = as_float64(values), as_float64(baseline)
    check_tasks("baseline", base, values.shape[-1])
    if bool((base == 0).any()):
        raise ArgumentError(
            f"`baseline` must not be zero, which has no relative change, got {base.tolist()}."
        )
    if convention not in ("drop", "gain"):
        raise ArgumentError(f"`convention` must be 'drop' or 'gain', got {convention!r}.")
    base = base.to(metrics.device)
    gains = (metrics - base) / base.abs()
    gains = gains * towards_better(higher_is_better, values.shape[-1]).to(gains)
    mean = placed(100 * gains.mean(dim=-1), values.device)
    return -mean if convention == "drop" else mean


class DeltaM(Narrowing):
    """Mean of :func:`delta_m` over updates, one per seed or evaluation.

    Args:
        baseline: See :func:`delta_m`.
        higher_is_better: See :func:`delta_m`.
        convention: See :func:`delta_m`.
        kwargs: For :class:`torchmetrics.Metric`.

    Example:
        >>> metric = DeltaM([0.8, 4.0], [True, False])
        >>> metric.update(torch.tensor([0.8, 5.0]))
        >>> metric.update(torch.tensor([0.8, 4.0]))
        >>> metric.compute()
        tensor(6.2500, dtype=torch.float64)
    """

    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(
        self,
        baseline: Sequence[float],
        higher_is_better: Better,
        convention: Convention = "drop",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.baseline, self.better, self.convention = list(baseline), higher_is_better, convention
        delta_m(torch.tensor(self.baseline), self.baseline, higher_is_better, convention)  # checks
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    @override
    def update(self, values: Tensor) -> None:
        """Add the metrics of each task, shape (k,) or (n, k)."""
        found = delta_m(values, self.baseline, self.better, self.convention)
        self.total = self.total + found.sum()
        self.count = self.count + found.numel()

    @override
    def compute(self) -> Tensor:
        """The mean; NaN before the first update."""
        return self.total / self.count


def mean_rank(values: Tensor, higher_is_better: Better) -> Tensor:
    """Mean over the tasks of the rank of each method; 1 is the best.

    Ties get the mean of their ranks; NaN ranks last.

    Args:
        values: The task metrics, shape (methods, k).
        higher_is_better: One bool for all tasks, or one per task.

    Returns:
        Shape (methods,).

    Raises:
        ShapeError: If the shapes do not match.

    Example:
        Accuracy and error of three methods, two of them equally accurate:

        >>> mean_rank(torch.tensor([[0.9, 2.0], [0.9, 1.0], [0.5, 3.0]]), [True, False])
        tensor([1.7500, 1.2500, 3.0000], dtype=torch.float64)
    """
    check_tasks("values", values)
    if values.ndim != 2:
        raise ShapeError(
            f"`values` must have one row per method and one column per task, got the shape "
            f"{tuple(values.shape)}."
        )
    wide = as_float64(values)
    goodness = wide * towards_better(higher_is_better, values.shape[1]).to(wide)
    goodness = goodness.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    others, own = goodness[None, :, :], goodness[:, None, :]  # (methods, methods, k)
    better, equal = (others > own).sum(dim=1), (others == own).sum(dim=1)
    return placed((better + (equal + 1) / 2.0).double().mean(dim=1), values.device)


class MeanRank(Narrowing):
    """Mean of :func:`mean_rank` over updates, one per seed or dataset.

    Args:
        methods: The number of methods.
        higher_is_better: See :func:`mean_rank`.
        kwargs: For :class:`torchmetrics.Metric`.

    Example:
        >>> metric = MeanRank(2, True)
        >>> metric.update(torch.tensor([[0.9, 0.8], [0.5, 0.4]]))
        >>> metric.update(torch.tensor([[0.9, 0.3], [0.5, 0.4]]))
        >>> metric.compute()
        tensor([1.2500, 1.7500], dtype=torch.float64)
    """

    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self, methods: int, higher_is_better: Better, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.better = higher_is_better
        self.add_state("total", torch.zeros(methods, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    @override
    def update(self, values: Tensor) -> None:
        """Add the metrics of all methods, shape (methods, k)."""
        ranks = mean_rank(values, self.better)
        if ranks.shape != self.total.shape:
            raise ShapeError(
                f"`values` must have one row for each of the {len(self.total)} methods, got "
                f"{len(ranks)}."
            )
        self.total = self.total + ranks
        self.count = self.count + 1

    @override
    def compute(self) -> Tensor:
        """The mean rank of each method, shape (methods,); NaN before the first update."""
        return self.total / self.count

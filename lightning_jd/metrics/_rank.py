"""The place of each method among the others, averaged over the tasks."""

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.errors import ShapeError
from lightning_jd.linalg import placed
from lightning_jd.metrics._tasks import Better, Narrowing, as_float64, check_tasks, towards_better


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

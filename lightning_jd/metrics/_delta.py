"""How much better or worse than single-task training, averaged over the tasks."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.errors import ArgumentError
from lightning_jd.linalg import placed
from lightning_jd.metrics._tasks import Better, Narrowing, as_float64, check_tasks, towards_better

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

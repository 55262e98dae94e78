"""Conflict, imbalance and stationarity of the gradients of one step."""

from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.errors import NonFiniteError
from lightning_jd.linalg import min_norm_weights
from lightning_jd.metrics._streaming import Reported, StreamingMetric, read
from lightning_jd.metrics._unit import (
    TOLERANCE,
    check_tolerance,
    share_below,
    single_or_double,
    unit_gramian,
)


def conflict_rate(gramian: Tensor, *, tolerance: float = TOLERANCE) -> Tensor:
    """Fraction of the pairs of objectives whose gradients conflict.

    Args:
        gramian: The Gramian, shape ``(m, m)``; for m = 1 the result is 0.
        tolerance: Pairs conflict if their cosine is below ``-tolerance``.

    Example:
        >>> import torch
        >>> conflict_rate(torch.tensor([[1.0, -0.5], [-0.5, 1.0]]))
        tensor(1.)
    """
    check_tolerance(tolerance)
    return rate_of_cosines(unit_gramian(gramian)[0], tolerance)


def rate_of_cosines(C: Tensor, tolerance: float) -> Tensor:
    """Share of the pairs off the diagonal of C below ``-tolerance``; the diagonal never is."""
    m = len(C)
    return share_below(C.flatten(), tolerance) * (m / max(m - 1, 1))


class ConflictRate(StreamingMetric):
    """Running :func:`conflict_rate` over the pairs of all updates and processes.

    Args:
        tolerance: See :func:`conflict_rate`.
        kwargs: For :class:`torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = ConflictRate()
        >>> metric.update(torch.tensor([[1.0, -0.5], [-0.5, 1.0]]))  # one pair, in conflict
        >>> metric.update(torch.eye(3))  # three pairs, none in conflict
        >>> metric.compute()
        tensor(0.2500)
    """

    higher_is_better = False
    title: ClassVar[str] = "Pairs of objectives in conflict"
    ylabel: ClassVar[str] = "share of the pairs"
    limits: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __init__(self, tolerance: float = TOLERANCE, **kwargs: Any) -> None:
        super().__init__(["conflict rate"], **kwargs)
        check_tolerance(tolerance)
        self.tolerance = tolerance

    @override
    def update(self, gramian: Tensor | Reported, weights: Tensor | None = None) -> None:
        """Add the Gramian (m, m) of one update, or its report; the weights are ignored."""
        G, _ = read(gramian)
        m = len(G)
        rate = conflict_rate(G, tolerance=self.tolerance)
        self.record(rate.reshape(1), weight=m * (m - 1) / 2)

    @override
    def compute(self) -> Tensor:
        """The fraction over all pairs; 0 if there was no pair."""
        rate = super().compute()
        return rate if self.update_count == 0 else rate.nan_to_num(nan=0.0)


def row_norms(gramian: Tensor) -> Tensor:
    r"""Norm of each gradient, :math:`\sqrt{G_{ii}}`, shape ``(m,)``.

    Example:
        >>> row_norms(torch.tensor([[9.0, -3.0], [-3.0, 4.0]]))
        tensor([3., 2.])
    """
    return unit_gramian(gramian)[1]


def norm_imbalance(gramian: Tensor) -> Tensor:
    r"""Geometric standard deviation of the gradient norms.

    With the norms :math:`n_i = \sqrt{G_{ii}}` of the non-zero gradients,

    .. math::
        \exp \sqrt{\tfrac 1m \sum_i (\log n_i - \overline{\log n})^2},

    It is 1 if all norms are equal, and 10 if a norm typically differs from the geometric mean by a
    factor of ten. Unlike the ratio of the extremes, it is robust to a single outlier.

    Args:
        gramian: :math:`G`, shape ``(m, m)``.

    Example:
        >>> round(float(norm_imbalance(torch.diag(torch.tensor([1.0, 10000.0])))), 4)  # 1 and 100
        10.0
    """
    return log_deviation(row_norms(gramian)).exp()


def log_deviation(norms: Tensor) -> Tensor:
    """Standard deviation of the logarithms of the norms that are not zero."""
    alive = norms != 0  # true for NaN, which has to be seen
    logs = torch.where(alive, norms, 1.0).log()
    count = alive.sum().clamp(min=1)
    mean = logs.sum() / count
    return (torch.where(alive, logs - mean, 0.0).square().sum() / count).sqrt()


class NormImbalance(StreamingMetric):
    """Geometric mean of :func:`norm_imbalance` over all updates of all processes.

    Args:
        kwargs: For :class:`torchmetrics.Metric`.

    Example:
        >>> metric = NormImbalance()
        >>> metric.update(torch.diag(torch.tensor([1.0, 10000.0])))
        >>> metric.update(torch.eye(2))
        >>> metric.compute()
        tensor(3.1623)
    """

    higher_is_better = False
    title: ClassVar[str] = "Imbalance of the gradient norms"
    ylabel: ClassVar[str] = "decades (log10 of the factor)"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(["imbalance"], **kwargs)

    @override
    def update(self, gramian: Tensor | Reported, weights: Tensor | None = None) -> None:
        """Add the Gramian (m, m) of one update, or its report."""
        self.record(single_or_double(norm_imbalance(read(gramian)[0])).log10().reshape(1))

    @override
    def compute(self) -> Tensor:
        """The geometric mean over all updates."""
        return torch.pow(10.0, self.mean()[0])


def stationarity_distance(gramian: Tensor) -> Tensor:
    r"""Norm of the shortest convex combination of the gradients, relative to their mean norm.

    .. math::
        \frac{\min_{w \succeq 0,\, \sum w_i = 1} \lVert J^\top w \rVert}
             {\frac 1m \sum_i \lVert g_i \rVert} \in [0, 1].

    The rows :math:`g_i` of :math:`J` are the gradients. The value is 0 exactly at *weakly
    stationary* points, among them all Pareto optima, where some combination of the gradients
    vanishes; it is 1 if all gradients are equal. It solves one quadratic program in m unknowns,
    exactly, on the host. Values below the square root of the rounding error of ``gramian`` (3e-4 in
    float32) are indistinguishable from 0.

    Args:
        gramian: :math:`G = J J^\top`, shape ``(m, m)``.

    Example:
        >>> stationarity_distance(torch.eye(2))  # half the diagonal of the unit square
        tensor(0.7071)
        >>> stationarity_distance(torch.tensor([[9.0, -3.0], [-3.0, 1.0]]))  # opposed
        tensor(0.)
    """
    return of_unit(*unit_gramian(gramian), eps=torch.finfo(gramian.dtype).eps)


def of_unit(C: Tensor, norms: Tensor, *, eps: float) -> Tensor:
    """The distance from cosines C and norms n; ``eps`` is the rounding of the Gramian."""
    # In units of the longest gradient: squares of long gradients would overflow.
    lengths = norms / norms.amax().clamp(min=torch.finfo(norms.dtype).tiny)
    try:
        weights = min_norm_weights(C * lengths * lengths[:, None])
    except NonFiniteError:  # a metric tells; it does not end a run whose step was skipped anyway
        return torch.full_like(norms[0], torch.nan)
    y = weights * lengths
    squared = y @ C @ y
    # What is left of a sum that cancels is rounding.
    squared = squared * (squared > eps * y.sum().square())
    return squared.sqrt() / lengths.mean().clamp(min=torch.finfo(norms.dtype).tiny)


class StationarityDistance(StreamingMetric):
    """Mean of :func:`stationarity_distance` over all updates of all processes.

    Args:
        kwargs: For :class:`torchmetrics.Metric`.

    Example:
        >>> metric = StationarityDistance()
        >>> metric.update(torch.eye(4))
        >>> metric.compute()
        tensor(0.5000)
    """

    higher_is_better = False
    title: ClassVar[str] = "Distance to weak stationarity"
    ylabel: ClassVar[str] = "relative to the mean gradient norm"
    limits: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(["distance to stationarity"], **kwargs)

    @override
    def update(self, gramian: Tensor | Reported, weights: Tensor | None = None) -> None:
        """Add the Gramian (m, m) of one update, or its report."""
        self.record(stationarity_distance(read(gramian)[0]).reshape(1))

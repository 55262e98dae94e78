"""How far is this point from one where no objective can improve without another's loss?"""

from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.errors import NonFiniteError
from lightning_jd.linalg import min_norm_weights
from lightning_jd.metrics._reported import Reported, read
from lightning_jd.metrics._streaming import StreamingMetric
from lightning_jd.metrics._unit import unit_gramian


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

"""How does the method share its attention among the objectives? Entropy, and weight per task."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.errors import ArgumentError, ShapeError
from lightning_jd.metrics._names import check_names, positions
from lightning_jd.metrics._streaming import StreamingMetric
from lightning_jd.metrics._unit import single_or_double


def weight_entropy(weights: Tensor) -> Tensor:
    r"""Evenness of the weights: 1 if all are equal, 0 if one objective has everything.

    .. math::
        -\frac{1}{\log m} \sum_i q_i \log q_i, \qquad q_i = \frac{|w_i|}{\sum_j |w_j|}.

    Args:
        weights: :math:`w`, shape ``(m,)``. Without any weight the value is 0, with m = 1 it is 1.

    Example:
        >>> weight_entropy(torch.tensor([0.5, 0.5, 0.0, 0.0]))  # log 2 / log 4
        tensor(0.5000)
    """
    size = _sizes(weights)
    # Shares of the largest one first: a sum of weights of 1e38 would overflow.
    q = size / size.amax().clamp(min=torch.finfo(size.dtype).tiny)
    q = q / q.sum().clamp(min=torch.finfo(size.dtype).tiny)
    return q[0] if len(q) == 1 else -torch.xlogy(q, q).sum() / math.log(len(q))


def largest_weight(weights: Tensor) -> Tensor:
    r"""Largest weight in units of the weight that the mean gives, :math:`m \max_i |w_i|`.

    Large values say that an objective with a small gradient is defended at a high price; they are
    what a larger ``reg`` of UPGrad and DualProj lowers.

    Args:
        weights: :math:`w`, shape ``(m,)``.

    Example:
        >>> largest_weight(torch.tensor([0.25, 0.75]))
        tensor(1.5000)
    """
    return _sizes(weights).amax() * len(weights)


def _sizes(weights: Tensor) -> Tensor:
    if weights.ndim != 1 or len(weights) == 0:
        raise ShapeError(f"`weights` must have shape (m,), got {tuple(weights.shape)}.")
    return single_or_double(weights).abs()


class WeightEntropy(StreamingMetric):
    """Mean of :func:`weight_entropy` over all updates of all processes.

    Args:
        kwargs: For :class:`torchmetrics.Metric`.

    Example:
        >>> metric = WeightEntropy()
        >>> metric.update(torch.tensor([0.5, 0.5]))
        >>> metric.update(torch.tensor([1.0, 0.0]))
        >>> metric.compute()
        tensor(0.5000)
    """

    higher_is_better = None
    title: ClassVar[str] = "Evenness of the weights"
    ylabel: ClassVar[str] = "entropy / log m"
    limits: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(["weight entropy"], **kwargs)

    @override
    def update(self, gramian: Tensor | None = None, weights: Tensor | None = None) -> None:
        """Add the weights (m,) of one update, alone or after a Gramian.

        Raises:
            ArgumentError: If there are none.
        """
        used = gramian if weights is None else weights
        if used is None:
            raise ArgumentError("`update` must get the weights of the update, got nothing.")
        self.record(weight_entropy(used).reshape(1))


class TaskWeights(StreamingMetric):
    """Mean weight of each named objective over all updates of all processes.

    Args:
        names: The objectives. An update without some of them leaves their means as they were.
        kwargs: For :class:`torchmetrics.Metric`.

    Raises:
        ArgumentError: If there is no name, or one twice.

    Example:
        >>> metric = TaskWeights(["depth", "normals"])
        >>> metric.update(torch.tensor([0.5, 0.5]))
        >>> metric.update(torch.tensor([1.0]), names=["normals"])
        >>> metric.compute()
        {'depth': tensor(0.5000), 'normals': tensor(0.7500)}
    """

    higher_is_better = None
    title: ClassVar[str] = "Weight of each objective"
    ylabel: ClassVar[str] = "weight"

    def __init__(self, names: Sequence[str], **kwargs: Any) -> None:
        super().__init__(check_names(names), **kwargs)

    @override
    def update(self, weights: Tensor, names: Sequence[str] | Tensor | None = None) -> None:
        """Add the weights of one update.

        Args:
            weights: Shape ``(m,)``. In a collection of metrics, this is the Gramian, and the
                weights come second.
            names: Whose weights these are, if not all objectives in order.

        Raises:
            UnknownNameError: If a name is not one of the metric's.
            ShapeError: If there is not one name per weight.
        """
        if isinstance(names, Tensor):
            weights, names = names, None
        where = positions(names, self.labels, len(weights))
        present = self.total.new_zeros(len(self.labels))
        values = torch.zeros_like(present)
        present[where] = 1.0
        values[where] = single_or_double(weights).to(values)
        self.record(values, weight=present)

    def extended(self, names: Sequence[str]) -> "TaskWeights":
        """A new metric that also knows these names, with all that this one has seen."""
        everybody = dict.fromkeys([*self.labels, *names])
        wider = TaskWeights(tuple(everybody), sync_on_compute=self.sync_on_compute)
        wider.to(self.device)
        for state in ("total", "squares", "count"):
            getattr(wider, state)[:, : len(self.labels)] = getattr(self, state)
        wider.width = self.width.clone()
        wider._update_count = self.update_count
        return wider

    @override
    def compute(self) -> dict[str, Tensor]:  # type: ignore[override]  # a metric of many numbers
        """Name to mean weight; NaN for an objective that was never there."""
        return dict(zip(self.labels, self.mean(), strict=True))

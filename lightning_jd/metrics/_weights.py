"""How does the method share its attention among the objectives? Entropy, and weight per task."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.errors import ArgumentError, ShapeError
from lightning_jd.metrics._names import check_names, positions
from lightning_jd.metrics._streaming import Reported, StreamingMetric
from lightning_jd.metrics._unit import single_or_double


def weight_entropy(weights: Tensor) -> Tensor:
    r"""Normalised entropy of the weights: 1 if all are equal, 0 if one objective has all of it.

    .. math::
        -\frac{1}{\log m} \sum_i q_i \log q_i, \qquad q_i = \frac{|w_i|}{\sum_j |w_j|}.

    Args:
        weights: :math:`w`, shape ``(m,)``. For zero weights the result is 0; for m = 1 it is 1.

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
    r"""Largest weight relative to the uniform weight 1/m: :math:`m \max_i |w_i|`.

    A large value means that an objective with a small gradient dominates the update. A larger
    ``reg`` of UPGrad and DualProj reduces it.

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
    def update(
        self, gramian: Tensor | Reported | None = None, weights: Tensor | None = None
    ) -> None:
        """Add the weights (m,) of one update, either alone or after a Gramian, or its report.

        Raises:
            ArgumentError: If there are none.
        """
        if gramian is not None and not isinstance(gramian, Tensor):
            gramian = gramian.weights
        used = gramian if weights is None else weights
        if used is None:
            raise ArgumentError("`update` requires the weights, got none.")
        self.record(weight_entropy(used).reshape(1))


class TaskWeights(StreamingMetric):
    """Mean weight of each named objective over all updates of all processes.

    Args:
        names: The objectives. An update may cover a part of them.
        kwargs: For :class:`torchmetrics.Metric`.

    Raises:
        ArgumentError: If ``names`` is empty or has duplicates.

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
    def update(
        self, weights: Tensor | Reported, names: Sequence[str] | Tensor | None = None
    ) -> None:
        """Add the weights of one update.

        Args:
            weights: Shape ``(m,)``, or a report. In a ``MetricCollection``, the Gramian comes
                first and the weights second.
            names: The objectives of the weights; all of them in order by default.

        Raises:
            UnknownNameError: If the metric does not have this name.
            ShapeError: If the number of names differs from the number of weights.
        """
        if not isinstance(weights, Tensor):
            names, weights = weights.names, weights.weights
        if isinstance(names, Tensor):
            weights, names = names, None
        where = positions(names, self.labels, len(weights))
        present = self.total.new_zeros(len(self.labels))
        values = torch.zeros_like(present)
        present[where] = 1.0
        values[where] = single_or_double(weights).to(values)
        self.record(values, weight=present)

    def extended(self, names: Sequence[str]) -> "TaskWeights":
        """A copy of this metric, with its state, that also has these names."""
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
        """The mean weight by name; NaN for an objective that never occurred."""
        return dict(zip(self.labels, self.mean(), strict=True))

"""Do some gradients drown the others? The function and the metric."""

from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.metrics._reported import Reported, read
from lightning_jd.metrics._streaming import StreamingMetric
from lightning_jd.metrics._unit import single_or_double, unit_gramian


def gradient_norms(gramian: Tensor) -> Tensor:
    r"""Norm of each gradient, :math:`\sqrt{G_{ii}}`, shape ``(m,)``.

    Example:
        >>> gradient_norms(torch.tensor([[9.0, -3.0], [-3.0, 4.0]]))
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
    return log_deviation(gradient_norms(gramian)).exp()


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

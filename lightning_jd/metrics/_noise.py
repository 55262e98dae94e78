"""Would a larger batch pay? The noise of a gradient that is a mean over examples."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.errors import ArgumentError, ShapeError
from lightning_jd.linalg import check_square
from lightning_jd.metrics._streaming import Reported, StreamingMetric, read
from lightning_jd.metrics._unit import single_or_double


def noise_and_signal(gramian: Tensor) -> tuple[Tensor, Tensor]:
    r"""Unbiased estimates of :math:`\operatorname{tr} \Sigma` and :math:`\lVert g \rVert^2`.

    The rows :math:`g_1, \dots, g_m` are the gradients of independent examples, with mean g and
    covariance :math:`\Sigma`. With their mean :math:`\bar g`,

    .. math::
        \widehat{\operatorname{tr} \Sigma}
            = \frac{1}{m - 1} \sum_i \lVert g_i - \bar g \rVert^2, \qquad
        \widehat{\lVert g \rVert^2}
            = \frac{1}{m (m - 1)} \sum_{i \ne j} \langle g_i, g_j \rangle .

    The second may be negative where the noise is large.

    Args:
        gramian: :math:`G = J J^\top`, shape ``(m, m)``.

    Raises:
        ShapeError: If there is only one row.

    Example:
        >>> J = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
        >>> noise_and_signal(J @ J.T)
        (tensor(2.), tensor(0.))
    """
    check_square("gramian", gramian)
    m = len(gramian)
    if m < 2:
        raise ShapeError(f"`gramian` must be that of at least two examples, got {m}.")
    G = single_or_double(gramian)
    squares, total = G.diagonal().sum(), G.sum()
    signal = (total - squares) / (m * (m - 1))
    return squares / m - signal, signal


def gradient_noise_scale(gramian: Tensor) -> Tensor:
    r"""The gradient noise scale :math:`\operatorname{tr} \Sigma / \lVert g \rVert^2` of one batch.

    In a batch of as many examples, the noise of the mean gradient is as long as the gradient: in
    much smaller batches, twice the examples are worth almost twice the steps, in much larger ones
    they are wasted. Both parts are unbiased, see :func:`noise_and_signal`, but their ratio is only
    consistent: take :class:`GradientNoiseScale` over several batches.

    Args:
        gramian: :math:`G = J J^\top` of one loss per example, shape ``(m, m)``.

    Returns:
        Infinite where the estimate of :math:`\lVert g \rVert^2` is not positive.

    Raises:
        ShapeError: If there is only one row.

    Example:
        >>> J = torch.tensor([[3.0, 1.0], [3.0, -1.0]])
        >>> gradient_noise_scale(J @ J.T)  # 2 / 8
        tensor(0.2500)

    References:
        McCandlish, Kaplan, Amodei et al., *An Empirical Model of Large-Batch Training*,
        arXiv:1812.06162.
    """
    return _ratio(*noise_and_signal(gramian))


class GradientNoiseScale(StreamingMetric):
    r""":func:`gradient_noise_scale` of all updates: the ratio of the means of both estimates.

    So a batch whose gradient drowns in noise does no harm. The signal-to-noise ratio of the mean
    gradient of m examples is m over this.

    Args:
        kwargs: For :class:`torchmetrics.Metric`.

    Example:
        >>> metric = GradientNoiseScale()
        >>> metric.update(torch.tensor([[10.0, 8.0], [8.0, 10.0]]))
        >>> metric.update(torch.tensor([[2.0, 0.0], [0.0, 2.0]]))
        >>> metric.compute()  # (2 + 2) / (8 + 0)
        tensor(0.5000)
    """

    higher_is_better = None
    title: ClassVar[str] = "Gradient noise and signal"
    ylabel: ClassVar[str] = "squared norm"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(["noise", "signal"], **kwargs)

    @override
    def update(self, gramian: Tensor | Reported, weights: Tensor | None = None) -> None:
        """Add the Gramian (m, m) of one update, or its report; the rows must be examples."""
        self.record(torch.stack(noise_and_signal(read(gramian)[0])))

    @override
    def compute(self) -> Tensor:
        """The noise scale; NaN before the first update."""
        return _ratio(*self.mean().unbind())


def _ratio(noise: Tensor, signal: Tensor) -> Tensor:
    ratio = torch.where(signal > 0, noise.clamp(min=0) / signal, torch.inf)
    return torch.where(signal.isnan() | noise.isnan(), torch.nan, ratio)


def norm_quantiles(gramian: Tensor, q: Sequence[float] = (0.1, 0.5, 0.9)) -> Tensor:
    r"""Quantiles of the gradient norms :math:`\sqrt{G_{ii}}`, shape ``(len(q),)``.

    Example:
        >>> norm_quantiles(torch.diag(torch.tensor([1.0, 4.0, 9.0])), (0.0, 0.5, 1.0))
        tensor([1., 2., 3.])
    """
    check_square("gramian", gramian)
    norms = single_or_double(gramian).diagonal().clamp(min=0).sqrt()
    return norms.quantile(norms.new_tensor(q))


class NormQuantiles(StreamingMetric):
    """Means of :func:`norm_quantiles` over all updates of all processes.

    Args:
        q: Which quantiles, from 0 to 1.
        kwargs: For :class:`torchmetrics.Metric`.

    Raises:
        ArgumentError: If a number is not from 0 to 1, or there is none.

    Example:
        >>> metric = NormQuantiles([0.5])
        >>> metric.update(torch.diag(torch.tensor([1.0, 4.0, 9.0])))
        >>> metric.compute()
        tensor(2.)
    """

    higher_is_better = None
    title: ClassVar[str] = "Gradient norms"
    ylabel: ClassVar[str] = "norm"

    def __init__(self, q: Sequence[float] = (0.1, 0.5, 0.9), **kwargs: Any) -> None:
        if not q or not all(0 <= number <= 1 for number in q):
            raise ArgumentError(f"`q` must be numbers from 0 to 1, got {list(q)}.")
        super().__init__([f"{number:g}" for number in q], **kwargs)
        self.q = tuple(q)

    @override
    def update(self, gramian: Tensor | Reported, weights: Tensor | None = None) -> None:
        """Add the Gramian (m, m) of one update, or its report."""
        self.record(norm_quantiles(read(gramian)[0], self.q))

"""UW: weights from the uncertainty of each task, which is learned."""

from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._learned import LearnedBalancer
from lightning_jd.aggregators._registry import register


@register
class UW(LearnedBalancer):
    r"""Uncertainty weighting with learned log-variances :math:`s`.

    .. math::
        \min_{\theta, s} \sum_{i=1}^{m} \tfrac12 \bigl(e^{-s_i} \ell_i(\theta) + s_i\bigr), \qquad
        w_i = \tfrac12 e^{-s_i}

    The log-variances :math:`s` start at 0. A separate Adam learns them; its state is part of the
    state dict, and the optimizer of the module is not involved. The weights are those before the
    Adam step, as if one optimizer updated both at once.

    Args:
        lr: Learning rate of that Adam; positive.

    Raises:
        ArgumentError: If the learning rate is not positive and finite.

    Example:
        >>> import torch
        >>> balancer = UW(lr=0.1)
        >>> for _ in range(500):
        ...     weights = balancer.weights(torch.tensor([0.5, 2.0]))
        >>> weights  # 1 / (2 loss), the minimum over s
        tensor([1.0000, 0.2500])

    References:
        Kendall, Gal and Cipolla, *Multi-Task Learning Using Uncertainty to Weigh Losses for Scene
        Geometry and Semantics*, CVPR 2018.
    """

    @override
    def learn(self, s: Tensor, losses: Tensor) -> tuple[Tensor, Tensor]:
        weights = 0.5 * (-s).exp()
        return weights, 0.5 - weights * losses

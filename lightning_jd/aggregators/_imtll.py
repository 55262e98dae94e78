"""IMTL-L: learned scales that make all losses alike."""

from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._learned import LearnedBalancer
from lightning_jd.aggregators._registry import register


@register
class IMTLL(LearnedBalancer):
    r"""Impartial multi-task learning, loss part: learned scales that make all losses equal.

    .. math::
        \min_{\theta, s} \sum_{i=1}^{m} \bigl(e^{s_i} \ell_i(\theta) - s_i\bigr), \qquad
        w_i = e^{s_i}

    At the minimum over :math:`s` every scaled loss :math:`w_i \ell_i` is one. The scales :math:`s`
    start at 0. A separate Adam learns them; its state is part of the state dict. The weights are
    twice those of :class:`~lightning_jd.aggregators.UW`.

    Args:
        lr: Learning rate of that Adam; positive.

    Raises:
        ArgumentError: If the learning rate is not positive and finite.

    Example:
        >>> import torch
        >>> balancer = IMTLL(lr=0.1)
        >>> for _ in range(500):
        ...     weights = balancer.weights(torch.tensor([0.5, 2.0]))
        >>> weights
        tensor([2.0000, 0.5000])

    References:
        Liu et al., *Towards Impartial Multi-task Learning*, ICLR 2021.
    """

    @override
    def learn(self, s: Tensor, losses: Tensor) -> tuple[Tensor, Tensor]:
        weights = s.exp()
        return weights, weights * losses - 1

"""GLS: the geometric mean of the losses."""

from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._balancer import Balancer, check_positive
from lightning_jd.aggregators._registry import register
from lightning_jd.aggregators._step import Step


@register
class GLS(Balancer):
    r"""Geometric Loss Strategy: the geometric mean of the losses.

    .. math::
        S(\ell) = \Bigl(\prod_{i=1}^{m} \ell_i\Bigr)^{1/m}, \qquad w_i = \frac{S(\ell)}{m\, \ell_i}

    It has the direction of :class:`~lightning_jd.aggregators.LogLosses`, so rescaling a loss does
    not change the direction. Its length scales with the losses.

    Raises:
        ArgumentError: When called, if a loss is not positive.

    Example:
        >>> import torch
        >>> GLS().weights(torch.tensor([1.0, 4.0]))
        tensor([1.0000, 0.2500])

    References:
        Chennupati et al., *MultiNet++: Multi-Stream Feature Aggregation and Geometric Loss Strategy
        for Multi-Task Learning*, CVPR Workshops 2019.
    """

    keeps_small_tasks = True

    @override
    def balance(self, losses: Tensor, step: Step) -> Tensor:
        check_positive("GLS", losses, step)
        logs = losses.log()
        return (logs.mean() - logs).exp() / len(losses)

"""Random weights, of gradients and of losses: a baseline that is hard to beat."""

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._balancer import Balancer
from lightning_jd.aggregators._base import GramianAggregator, Property, check_gramian
from lightning_jd.aggregators._random import OwnGenerator
from lightning_jd.aggregators._registry import register
from lightning_jd.aggregators._step import Step


@register
class RGW(OwnGenerator, GramianAggregator):
    r"""Random Gradient Weighting: a new random convex combination of the rows at each call.

    .. math::
        \mathcal A(J) = J^\top \operatorname{softmax}(z), \qquad z \sim \mathcal N(0, I_m)

    A given draw is not permutation invariant, because weights belong to positions; the distribution
    is.

    Args:
        seed: Seed of the random generator, whose state is part of the state dict.

    Example:
        >>> import torch
        >>> weights = RGW(seed=0).weights(torch.eye(3))
        >>> bool((weights > 0).all()), float(weights.sum())
        (True, 1.0)

    References:
        Lin et al., *Reasonable Effectiveness of Random Weighting: A Litmus Test for Multi-Task
        Learning*, TMLR 2022.
    """

    properties = frozenset({Property.LINEAR_UNDER_SCALING, Property.WEIGHTED})
    reads_gramian = False

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        check_gramian(gramian)
        z = torch.randn(len(gramian), dtype=torch.float64, generator=self.generator)
        return z.softmax(dim=0).to(gramian.device, gramian.dtype, non_blocking=True)


@register
class RLW(OwnGenerator, Balancer):
    r"""Random Loss Weighting: a new random convex combination of the losses at each step.

    .. math:: w = \operatorname{softmax}(z), \qquad z \sim \mathcal N(0, I_m)

    For the same draw, the update equals that of :class:`~lightning_jd.aggregators.RGW`, without
    computing a Jacobian. A matrix of losses (instance and task) gets one draw per task.

    Args:
        seed: Seed of the random generator, whose state is part of the state dict.

    Example:
        >>> weights = RLW(seed=0).weights(torch.ones(3))
        >>> bool((weights > 0).all()), round(float(weights.sum()), 6)
        (True, 1.0)

    References:
        Lin et al., *Reasonable Effectiveness of Random Weighting: A Litmus Test for Multi-Task
        Learning*, TMLR 2022.
    """

    @override
    def balance(self, losses: Tensor, step: Step) -> Tensor:
        z = torch.randn(len(losses), dtype=torch.float64, generator=self.generator)
        return z.softmax(dim=0).to(losses)

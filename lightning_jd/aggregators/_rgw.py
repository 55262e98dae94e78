"""RGW: random weights, a baseline that is hard to beat."""

from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._base import GramianAggregator, Property, check_gramian
from lightning_jd.aggregators._random import OwnGenerator
from lightning_jd.aggregators._registry import register


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

    properties: ClassVar[frozenset[Property]] = frozenset(
        {Property.LINEAR_UNDER_SCALING, Property.WEIGHTED}
    )
    reads_gramian = False

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        check_gramian(gramian)
        z = torch.randn(len(gramian), dtype=torch.float64, generator=self.generator)
        return z.softmax(dim=0).to(gramian.device, gramian.dtype, non_blocking=True)

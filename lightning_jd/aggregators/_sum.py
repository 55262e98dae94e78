"""Sum: what adding the losses does."""

from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._base import GramianAggregator, Property, check_gramian
from lightning_jd.aggregators._registry import register


@register
class Sum(GramianAggregator):
    r"""The sum of the rows: gradient descent on the sum of the losses.

    .. math::
        \mathcal A(J) = J^\top \mathbf 1

    Example:
        >>> import torch
        >>> Sum()(torch.tensor([[-2.0], [4.0]]))
        tensor([2.])
    """

    properties: ClassVar[frozenset[Property]] = frozenset(
        {Property.LINEAR_UNDER_SCALING, Property.WEIGHTED, Property.PERMUTATION_INVARIANT}
    )
    reads_gramian = False

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        check_gramian(gramian)
        return gramian.new_ones(len(gramian))

"""Mean: what averaging the losses does."""

from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._base import GramianAggregator, Property, check_gramian
from lightning_jd.aggregators._registry import register


@register
class Mean(GramianAggregator):
    r"""The mean of the rows: gradient descent on the mean of the losses.

    .. math::
        \mathcal A(J) = \frac1m J^\top \mathbf 1

    Example:
        >>> import torch
        >>> Mean()(torch.tensor([[-2.0], [4.0]]))
        tensor([1.])
    """

    properties: ClassVar[frozenset[Property]] = frozenset(
        {Property.LINEAR_UNDER_SCALING, Property.WEIGHTED, Property.PERMUTATION_INVARIANT}
    )
    reads_gramian = False

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        check_gramian(gramian)
        m = gramian.shape[0]
        return gramian.new_full((m,), 1 / m)

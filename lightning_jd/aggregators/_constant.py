"""Fixed weights: the sum and the mean of the losses, and any other weighting."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._base import GramianAggregator, Property, check_gramian
from lightning_jd.aggregators._registry import register
from lightning_jd.errors import ArgumentError, ShapeError


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

    properties = frozenset(
        {Property.LINEAR_UNDER_SCALING, Property.WEIGHTED, Property.PERMUTATION_INVARIANT}
    )
    reads_gramian = False

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        check_gramian(gramian)
        return gramian.new_ones(len(gramian))


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

    properties = frozenset(
        {Property.LINEAR_UNDER_SCALING, Property.WEIGHTED, Property.PERMUTATION_INVARIANT}
    )
    reads_gramian = False

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        check_gramian(gramian)
        m = gramian.shape[0]
        return gramian.new_full((m,), 1 / m)


@register
class Constant(GramianAggregator):
    r"""The weighted sum of the rows: gradient descent on a weighted sum of the losses.

    .. math::
        \mathcal A(J) = J^\top w

    Args:
        weights: :math:`w`, one finite number per objective, of any sign.

    Raises:
        ArgumentError: If ``weights`` is empty, or an entry is not finite.
        ShapeError: When called, if the number of weights differs from the number of objectives.

    Example:
        >>> import torch
        >>> Constant(weights=[2, 1])(torch.tensor([[-2.0], [5.0]]))
        tensor([1.])
    """

    properties = frozenset({Property.LINEAR_UNDER_SCALING, Property.WEIGHTED})
    reads_gramian = False

    def __init__(self, weights: Sequence[float]) -> None:
        super().__init__()
        self.numbers = tuple(float(weight) for weight in weights)
        if not self.numbers or not all(map(math.isfinite, self.numbers)):
            raise ArgumentError(
                f"`weights` must be finite numbers, one per objective, got {list(self.numbers)}."
            )

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        check_gramian(gramian)
        if len(self.numbers) != len(gramian):
            raise ShapeError(
                f"`weights` must have one entry per objective ({len(gramian)}), "
                f"got {len(self.numbers)}."
            )
        numbers = torch.tensor(self.numbers, dtype=gramian.dtype)
        return numbers.to(gramian.device, non_blocking=True)

    @override
    def extra_repr(self) -> str:
        return f"weights={self.numbers}"

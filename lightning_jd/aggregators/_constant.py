"""Constant: a fixed weighting of the losses."""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._base import GramianAggregator, Property, check_gramian
from lightning_jd.aggregators._registry import register
from lightning_jd.errors import ArgumentError, ShapeError


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

    properties: ClassVar[frozenset[Property]] = frozenset(
        {Property.LINEAR_UNDER_SCALING, Property.WEIGHTED}
    )
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

"""Clip: no gradient is longer than a bound."""

from typing import ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._arguments import positive
from lightning_jd.aggregators._base import GramianAggregator, Property, check_gramian
from lightning_jd.aggregators._registry import register
from lightning_jd.errors import ArgumentError


@register
class Clip(GramianAggregator):
    r"""The mean (or sum) of the rows after each one is clipped to a largest norm.

    .. math::
        \mathcal A(J) = \frac1m J^\top w, \qquad w_i = \min(1, C / \lVert g_i \rVert)

    It bounds the influence of a single example. A step needs the norms of the gradients only, so
    that no other entry of the Gramian is computed for rows of instances, and the report has no
    Gramian. It is the first step of differentially private training and not more: there is no
    noise, no Poisson sampling and no accounting, hence no privacy.

    Args:
        norm: C, the largest norm of a row.
        reduction: ``"mean"`` or ``"sum"``; the sum is not divided by m.

    Raises:
        ArgumentError: If ``norm`` is not a positive, finite number, or ``reduction`` is neither.

    Example:
        >>> import torch
        >>> Clip(norm=1.0)(torch.tensor([[3.0, 4.0], [0.0, 0.5]]))
        tensor([0.3000, 0.6500])

    References:
        Abadi et al., *Deep Learning with Differential Privacy*, CCS 2016.
    """

    properties: ClassVar[frozenset[Property]] = frozenset(
        {Property.WEIGHTED, Property.PERMUTATION_INVARIANT}
    )
    only_norms = True

    def __init__(self, norm: float, reduction: Literal["mean", "sum"] = "mean") -> None:
        super().__init__()
        self.norm = positive("norm", norm)
        if reduction not in ("mean", "sum"):
            raise ArgumentError(f"`reduction` must be 'mean' or 'sum', got {reduction!r}.")
        self.reduction = reduction

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        check_gramian(gramian)
        norms = gramian.diagonal().clamp(min=0).sqrt()
        weights = torch.where(norms > self.norm, self.norm / norms, 1.0)
        return weights / len(weights) if self.reduction == "mean" else weights

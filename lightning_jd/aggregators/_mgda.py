"""MGDA: the direction of the largest guaranteed improvement."""

from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._base import GramianAggregator, Property
from lightning_jd.aggregators._registry import register
from lightning_jd.linalg import check_semidefinite, check_square, min_norm_weights


@register
class MGDA(GramianAggregator):
    r"""The shortest convex combination of the rows, solved exactly.

    .. math::
        \mathcal A(J) = J^\top w, \qquad
        w \in \operatorname*{arg\,min}_{v \succeq 0,\ \mathbf 1^\top v = 1} \lVert J^\top v \rVert

    Rows with a small norm dominate: a single zero row makes the update zero.

    Example:
        >>> import torch
        >>> MGDA()(torch.tensor([[2.0, 0.0], [0.0, 2.0], [0.5, 0.5]]))
        tensor([0.5000, 0.5000])

    References:
        Désidéri, *Multiple-gradient descent algorithm (MGDA) for multiobjective optimization*,
        Comptes Rendus Mathématique 350, 2012.
    """

    properties = frozenset(
        {Property.NON_CONFLICTING, Property.WEIGHTED, Property.PERMUTATION_INVARIANT}
    )
    keeps_small_tasks = True

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        check_square("gramian", gramian)
        check_semidefinite("gramian", gramian)
        return min_norm_weights(gramian)

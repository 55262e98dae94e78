"""MGDA: the direction of the largest guaranteed improvement; and with bounded weights."""

from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._arguments import positive
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
    keeps_small_tasks: ClassVar[bool | None] = True
    cap: float = 1.0

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        check_square("gramian", gramian)
        check_semidefinite("gramian", gramian)
        return min_norm_weights(gramian, cap=self.cap)


@register
class CappedMGDA(MGDA):
    r"""MGDA with an upper bound on the weights, so that no few rows decide alone.

    .. math::
        \mathcal A(J) = J^\top w, \qquad
        w \in \operatorname*{arg\,min}_{0 \preceq v \preceq c,\ \mathbf 1^\top v = 1}
        \lVert J^\top v \rVert

    Solved exactly. It maximises the mean of the :math:`1 / c` smallest improvements (their
    conditional value at risk) instead of the smallest one, so a single row that is short, or
    hostile, does not decide. A bound of at least 1 is :class:`~lightning_jd.aggregators.MGDA`; one
    of at most 1/m is :class:`~lightning_jd.aggregators.Mean`.

    Args:
        cap: The bound :math:`c`, positive.

    Raises:
        ArgumentError: If the bound is not positive and finite.

    Example:
        >>> import torch
        >>> CappedMGDA(cap=0.5)(torch.tensor([[2.0, 0.0], [0.0, 2.0], [0.1, 0.1]]))
        tensor([0.5500, 0.5500])

    References:
        Hu, Ho and Yu, *A Unified Framework for Gradient Aggregation in Multi-Objective
        Optimization*, arXiv:2605.30452.
    """

    properties = frozenset({Property.WEIGHTED, Property.PERMUTATION_INVARIANT})
    keeps_small_tasks = False

    def __init__(self, cap: float = 0.5) -> None:
        super().__init__()
        self.cap = positive("cap", cap)

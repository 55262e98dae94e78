"""CAGrad: the best worst improvement near the mean."""

from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._base import GramianAggregator, Property
from lightning_jd.aggregators._registry import register
from lightning_jd.errors import ArgumentError
from lightning_jd.linalg import cagrad_weights, check_semidefinite, check_square


@register
class CAGrad(GramianAggregator):
    r"""The direction with the best worst-case improvement in a ball around the mean.

    .. math::
        \mathcal A(J) \in \operatorname*{arg\,max}_{\lVert d - \bar g \rVert \le c \lVert \bar g
        \rVert} \min_i\, g_i^\top d, \qquad \bar g = \frac1m \sum_i g_i,

    with :math:`g_i` the rows of :math:`J`. ``c=0`` is :class:`~lightning_jd.aggregators.Mean`. At
    Pareto-stationary points the maximiser may not be unique; the result is then the one nearest to
    the mean. See :func:`~lightning_jd.linalg.cagrad_weights` for the criterion.

    Args:
        c: Radius of the ball relative to the norm of the mean, in [0, 1).

    Raises:
        ArgumentError: If ``c`` is outside its range.

    Example:
        >>> import torch
        >>> CAGrad(c=0.5)(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        tensor([0.7500, 0.7500])

    References:
        Liu et al., *Conflict-Averse Gradient Descent for Multi-task Learning*, NeurIPS 2021.
    """

    properties = frozenset({Property.WEIGHTED, Property.PERMUTATION_INVARIANT})

    def __init__(self, c: float = 0.5) -> None:
        super().__init__()
        if not 0 <= c < 1:
            raise ArgumentError(
                f"`c` must be at least 0 and less than 1, got {c}. "
                "0 is the mean; for a direction that never conflicts use UPGrad."
            )
        self.c = float(c)

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        check_square("gramian", gramian)
        check_semidefinite("gramian", gramian)
        return cagrad_weights(gramian, self.c)

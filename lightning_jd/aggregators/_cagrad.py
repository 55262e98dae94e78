"""CAGrad: the best worst improvement near the mean."""

from collections.abc import Sequence

from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._arguments import (
    PerObjective,
    checked_preference,
    preference_for,
)
from lightning_jd.aggregators._base import GramianAggregator, Property
from lightning_jd.aggregators._precision import in_float64
from lightning_jd.aggregators._registry import register
from lightning_jd.aggregators._step import Step
from lightning_jd.errors import ArgumentError
from lightning_jd.linalg import cagrad_weights, check_semidefinite, check_square


@register
class CAGrad(GramianAggregator):
    r"""The direction with the best worst-case improvement in a ball around the mean.

    .. math::
        \mathcal A(J) \in \operatorname*{arg\,max}_{\lVert d - \bar g \rVert \le c \lVert \bar g
        \rVert} \min_i\, g_i^\top d, \qquad \bar g = \sum_i p_i g_i,

    with :math:`g_i` the rows of :math:`J`. ``c=0`` is the (weighted) mean. At
    Pareto-stationary points the maximiser may not be unique; the result is then the one nearest to
    the mean. See :func:`~lightning_jd.linalg.cagrad_weights` for the criterion.

    Args:
        c: Radius of the ball relative to the norm of the mean, in [0, 1).
        preference: :math:`p`, positive, in the order of the objectives or by name, scaled to the
            sum one; ``None`` is 1/m each.
        clipped: Whether no objective has a larger share in the correction :math:`d - \bar g` than
            :math:`p_i`, as in RACO: the correction then respects the preference, and no longer
            maximises the worst improvement.

    Raises:
        ArgumentError: If an argument is outside its range.
        ShapeError: When called, if ``preference`` does not have one entry per objective.

    Example:
        >>> import torch
        >>> CAGrad(c=0.5)(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        tensor([0.7500, 0.7500])

    References:
        Liu et al., *Conflict-Averse Gradient Descent for Multi-task Learning*, NeurIPS 2021;
        clipped: Chen, Li, Chen and Lin, *Reward-free Alignment for Conflicting Objectives*, ICML
        2026, arXiv:2602.02495.
    """

    properties = frozenset({Property.WEIGHTED, Property.PERMUTATION_INVARIANT})

    def __init__(
        self, c: float = 0.5, preference: PerObjective | None = None, clipped: bool = False
    ) -> None:
        super().__init__()
        if not 0 <= c < 1:
            raise ArgumentError(
                f"`c` must be at least 0 and less than 1, got {c}. "
                "0 is the mean; for a direction that never conflicts use UPGrad."
            )
        self.c = float(c)
        self.preference = checked_preference(preference)
        self.clipped = clipped

    @override
    def weigh(self, gramian: Tensor, step: Step) -> Tensor:
        return self._weights(gramian, step.names)

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        return self._weights(gramian, None)

    def _weights(self, gramian: Tensor, names: Sequence[str] | None) -> Tensor:
        check_square("gramian", gramian)
        check_semidefinite("gramian", gramian)
        p = None
        if self.preference is not None:
            p = preference_for(self.preference, in_float64(gramian), names)
            p = p / p.sum()
        return cagrad_weights(gramian, self.c, p, clipped=self.clipped)

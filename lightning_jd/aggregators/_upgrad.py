"""UPGrad: average the rows of the Jacobian after projecting each one out of conflict."""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._arguments import (
    PerObjective,
    checked_preference,
    checked_reg,
    not_negative,
    preference_for,
)
from lightning_jd.aggregators._base import GramianAggregator, Property
from lightning_jd.aggregators._registry import register
from lightning_jd.aggregators._step import Step
from lightning_jd.linalg import check_semidefinite, check_square, upgrad_solution


@register
class UPGrad(GramianAggregator):
    r"""The mean of the rows of :math:`J`, each projected onto the dual cone of all rows.

    .. math::
        \mathcal A(J) = \sum_{i=1}^{m} p_i\, \pi_J(J^\top e_i), \qquad
        \pi_J(g) = \operatorname*{arg\,min}_{d \,:\, J d \succeq 0} \lVert d - g \rVert .

    By duality :math:`\pi_J(J^\top u) = J^\top w`, where :math:`w` minimises :math:`v^\top H v` over
    :math:`v \succeq u` with :math:`H = G = J J^\top`: :math:`m` programs in :math:`m` unknowns.
    With ``reg > 0``, the programs use :math:`H = G / \operatorname{tr} G + \text{reg}\, I`.

    The claimed properties hold for ``reg=0``, the definition. With ``reg > 0``, an objective with a
    small gradient may get worse: :math:`g_i^\top \mathcal A(J) \ge -\text{reg}\,
    \operatorname{tr}(G)\, w_i`. In exchange, such an objective does not block the others.

    Args:
        preference: The :math:`p_i`, one positive number per objective, in order or by name;
            ``None`` is 1/m each.
        reg: Regularisation relative to the trace of the Gramian; 0 is the definition in the paper.
        solver: ``"auto"``, ``"batched"``, or the name of a ``qpsolvers`` solver.
        tolerance: The KKT residual at which a quadratic program counts as solved, for gradients
            scaled to norm 1. ``None`` depends on the dtype of the Gramian: 1e-12 for float64, 1e-6
            otherwise; 0 solves exactly. Up to 64 objectives are always solved exactly.

    Attributes:
        residual: The KKT residual of the last weights; ``None`` before the first call.

    Raises:
        ArgumentError: If a preference is not positive, or ``reg`` or ``tolerance`` is negative.
        ShapeError: When called, if ``preference`` does not have one entry per objective.

    Example:
        >>> import torch
        >>> J = torch.tensor([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]])
        >>> UPGrad(reg=0)(J)
        tensor([0.2924, 1.9006, 1.9006])
        >>> UPGrad()(J)
        tensor([0.2929, 1.9004, 1.9004])

    References:
        Quinton and Rey, *Jacobian Descent for Multi-Objective Optimization*, arXiv:2406.16232.
    """

    properties: ClassVar[frozenset[Property]] = frozenset(
        {
            Property.NON_CONFLICTING,
            Property.LINEAR_UNDER_SCALING,
            Property.WEIGHTED,
            Property.PERMUTATION_INVARIANT,
        }
    )

    def __init__(
        self,
        preference: PerObjective | None = None,
        reg: float = 1e-4,
        solver: str = "auto",
        tolerance: float | None = None,
    ) -> None:
        super().__init__()
        self.preference = checked_preference(preference)
        self.reg = checked_reg(reg)
        self.solver = solver
        self.tolerance = None if tolerance is None else not_negative("tolerance", tolerance)
        self.residual: float | None = None

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        return self._weights(gramian, None)

    @override
    def weigh(self, gramian: Tensor, step: Step) -> Tensor:
        return self._weights(gramian, step.names)

    def _weights(self, gramian: Tensor, names: Sequence[str] | None) -> Tensor:
        check_square("gramian", gramian)
        check_semidefinite("gramian", gramian)
        p = None if self.preference is None else preference_for(self.preference, gramian, names)
        weights, self.residual = upgrad_solution(
            gramian, p, reg=self.reg, solver=self.solver, tolerance=self.tolerance
        )
        return weights

"""UPGrad: average the rows of the Jacobian after projecting each one out of conflict."""

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
from lightning_jd.aggregators._regularisation import (
    Relative,
    checked_relative_to,
    scale_of_reg,
)
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
    With ``reg > 0``, the programs use :math:`H = G + \text{reg}\, \operatorname{diag}(s)`. Then
    :math:`g_i^\top \mathcal A(J) \ge -\text{reg}\, s_i w_i`, and the scale :math:`s` decides what
    that means:

    - tasks and ranks: :math:`s_i = \lVert g_i \rVert^2`. What an objective concedes is relative to
      its own gradient, whatever its scale is, and linearity under scaling is exact. Both hold for
      gradients that are longer than 1e-6 times :math:`\sqrt{\operatorname{tr} G}`; shorter ones,
      rounding noise in float32, lose their influence.
    - instances: :math:`s_i = \operatorname{tr} G`. An instance with a small gradient may get worse.
      In exchange, it does not block the others.

    The claimed properties hold for ``reg=0``, the definition.

    Args:
        preference: The :math:`p_i`, one positive number per objective, in order or by name;
            ``None`` is 1/m each.
        reg: Regularisation; 0 is the definition in the paper.
        solver: ``"auto"``, ``"batched"``, or the name of a ``qpsolvers`` solver.
        tolerance: The KKT residual at which a quadratic program counts as solved, for gradients
            scaled to norm 1. ``None`` depends on the dtype of the Gramian: 1e-12 for float64, 1e-6
            otherwise; 0 solves exactly. Up to 64 objectives are always solved exactly.
        relative_to: The scale :math:`s` of ``reg``: ``"row"``, ``"trace"``, or ``"auto"`` by the
            kind of the rows: ``"row"`` for tasks and ranks, ``"trace"`` for instances, and the
            trace of the rows of the same task for a matrix of losses. Without a step (a Gramian or
            a Jacobian alone), ``"auto"`` is ``"trace"``, as in the paper.

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
    keeps_small_tasks = True

    def __init__(
        self,
        preference: PerObjective | None = None,
        reg: float = 1e-4,
        solver: str = "auto",
        tolerance: float | None = None,
        relative_to: Relative = "auto",
    ) -> None:
        super().__init__()
        self.preference = checked_preference(preference)
        self.reg = checked_reg(reg)
        self.solver = solver
        self.tolerance = None if tolerance is None else not_negative("tolerance", tolerance)
        self.relative_to = checked_relative_to(relative_to)
        self.residual: float | None = None

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        return self._weights(gramian, None)

    @override
    def weigh(self, gramian: Tensor, step: Step) -> Tensor:
        return self._weights(gramian, step)

    def _weights(self, gramian: Tensor, step: Step | None) -> Tensor:
        check_square("gramian", gramian)
        check_semidefinite("gramian", gramian)
        names = None if step is None else step.names
        p = None if self.preference is None else preference_for(self.preference, gramian, names)
        weights, self.residual = upgrad_solution(
            gramian,
            p,
            reg=self.reg,
            relative_to=scale_of_reg(self.relative_to, step),
            solver=self.solver,
            tolerance=self.tolerance,
        )
        return weights

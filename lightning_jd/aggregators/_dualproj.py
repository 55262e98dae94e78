"""DualProj: project the average of the rows of the Jacobian out of conflict."""

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
from lightning_jd.linalg import check_semidefinite, check_square, dual_cone_solution


@register
class DualProj(GramianAggregator):
    r"""The mean of the rows of :math:`J`, projected onto the dual cone of the rows.

    .. math::
        \mathcal A(J) = \pi_J(J^\top p), \qquad
        \pi_J(g) = \operatorname*{arg\,min}_{d \,:\, J d \succeq 0} \lVert d - g \rVert .

    Its weights minimise :math:`v^\top H v` over :math:`v \succeq p`, with :math:`H = G = J J^\top`,
    or :math:`H = G + \text{reg}\, \operatorname{diag}(s)`. The claimed properties hold for
    ``reg=0``; :class:`~lightning_jd.aggregators.UPGrad` states the scale :math:`s` and the bound
    for ``reg > 0``.

    Args:
        preference: :math:`p`, one positive number per objective, in order or by name; ``None`` is
            1/m each.
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
        >>> DualProj(reg=0)(torch.tensor([[2.0, 0.0], [-4.0, 4.0]]))
        tensor([0., 2.])

    References:
        Lopez-Paz and Ranzato, *Gradient Episodic Memory for Continual Learning*, NeurIPS 2017.
    """

    properties: ClassVar[frozenset[Property]] = frozenset(
        {Property.NON_CONFLICTING, Property.WEIGHTED, Property.PERMUTATION_INVARIANT}
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
        p = preference_for(self.preference, gramian, names)
        weights, self.residual = dual_cone_solution(
            gramian,
            p,
            reg=self.reg,
            relative_to=scale_of_reg(self.relative_to, step),
            solver=self.solver,
            tolerance=self.tolerance,
        )
        return weights

"""Primary: one objective leads, the others may not lose."""

from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._arguments import checked_reg, not_negative
from lightning_jd.aggregators._base import GramianAggregator, Property, check_gramian
from lightning_jd.aggregators._registry import register
from lightning_jd.aggregators._regularisation import (
    Relative,
    checked_relative_to,
    scale_of_reg,
)
from lightning_jd.aggregators._step import Step
from lightning_jd.errors import ArgumentError
from lightning_jd.linalg import check_square, dual_cone_weights


@register
class Primary(GramianAggregator):
    r"""The gradient of one objective, projected onto the directions that do not harm the others.

    .. math::
        \mathcal A(J) = \operatorname*{arg\,min}_{d \,:\, g_j^\top d \ge 0,\ j \ne p}
        \lVert d - g_p \rVert = g_p + \sum_{j \ne p} v_j g_j, \qquad v \succeq \text{margin}

    If the other losses are on replayed data, this is Gradient Episodic Memory (GEM). If they are
    the losses of earlier tasks, it is constrained fine-tuning. The primary objective does not get
    worse either: :math:`g_p^\top d = \lVert d \rVert^2`.

    The claimed properties hold for ``reg=0`` and ``margin=0``;
    :class:`~lightning_jd.aggregators.UPGrad` states the bound for ``reg > 0``.

    Args:
        primary: The name or the position of the primary objective.
        margin: The minimum weight of each other objective (the memory strength of GEM); not
            negative.
        reg: Regularisation; 0 is the projection itself.
        solver: ``"auto"``, ``"batched"``, or the name of a ``qpsolvers`` solver.
        relative_to: The scale of ``reg``: ``"row"``, ``"trace"``, or ``"auto"`` by the kind of the
            rows, as in :class:`~lightning_jd.aggregators.UPGrad`.

    Raises:
        ArgumentError: If an argument is out of its range; when called, if the primary objective
            does not exist.

    Example:
        >>> import torch
        >>> Primary(reg=0)(torch.tensor([[2.0, 2.0], [-4.0, 0.0]]))
        tensor([0., 2.])

    References:
        Lopez-Paz and Ranzato, *Gradient Episodic Memory for Continual Learning*, NeurIPS 2017.
    """

    properties: ClassVar[frozenset[Property]] = frozenset(
        {Property.NON_CONFLICTING, Property.LINEAR_UNDER_SCALING, Property.WEIGHTED}
    )
    keeps_small_tasks = True

    def __init__(
        self,
        primary: str | int = 0,
        margin: float = 0.0,
        reg: float = 1e-4,
        solver: str = "auto",
        relative_to: Relative = "auto",
    ) -> None:
        super().__init__()
        self.primary = primary
        self.margin = not_negative("margin", margin)
        self.reg = checked_reg(reg)
        self.solver = solver
        self.relative_to = checked_relative_to(relative_to)

    @override
    def weigh(self, gramian: Tensor, step: Step) -> Tensor:
        check_gramian(gramian)
        target = gramian.new_full((len(gramian),), self.margin)
        target[self._position(step)] = 1
        scale = scale_of_reg(self.relative_to, step)
        return dual_cone_weights(
            gramian, target, reg=self.reg, relative_to=scale, solver=self.solver
        )

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        check_square("gramian", gramian)
        return self.weigh(gramian, Step.bare(len(gramian)))

    def _position(self, step: Step) -> int:
        m, primary = len(step.names), self.primary
        if isinstance(primary, int) and not isinstance(primary, bool) and -m <= primary < m:
            return primary
        if primary in step.names:
            return step.names.index(str(primary))
        listed = ", ".join(map(repr, step.names[:10])) + (", ..." if m > 10 else "")
        raise ArgumentError(
            f"`primary` must be one of the objectives of every step, got {primary!r} where they "
            f"are {listed}."
        )

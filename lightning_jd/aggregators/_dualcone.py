"""Projections onto the dual cone: UPGrad, DualProj and Primary."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._arguments import (
    PerObjective,
    checked_preference,
    checked_reg,
    not_negative,
    preference_for,
)
from lightning_jd.aggregators._base import GramianAggregator, Property, check_gramian
from lightning_jd.aggregators._registry import register
from lightning_jd.aggregators._step import NAMELESS, Step, tasks_of
from lightning_jd.errors import ArgumentError, UnknownNameError
from lightning_jd.linalg import (
    RelativeTo,
    check_semidefinite,
    check_square,
    dual_cone_solution,
    dual_cone_weights,
    upgrad_solution,
)

#: ``"auto"`` is decided by the kind of the rows of each step.
Relative = Literal["auto", "row", "trace"]


def checked_relative_to(relative_to: Relative) -> Relative:
    """Return the argument, or raise unless it is one of the three."""
    if relative_to not in ("auto", "row", "trace"):
        raise UnknownNameError.of("relative_to", str(relative_to), ["auto", "row", "trace"])
    return relative_to


def scale_of_reg(relative_to: Relative, step: Step | None) -> RelativeTo:
    """The scale of ``reg`` for the rows of a step.

    The length of the gradient of a task is a matter of units: nobody may drown, so each row has its
    own scale. The length of the gradient of an instance tells how well it is learned already: one
    that is learned must not veto, so all rows have the scale of their trace, task by task.

    Args:
        relative_to: The argument of the aggregator.
        step: What the rows are; ``None`` if it is unknown, for the trace, as in the paper.

    Example:
        >>> scale_of_reg("auto", Step(("depth", "normals")))
        'row'
        >>> scale_of_reg("auto", Step(("0", "1"), kind="instances"))
        'trace'
        >>> scale_of_reg("auto", Step(("0/0", "0/1", "1/0", "1/1"), kind="instances_tasks"))
        (0, 1, 0, 1)
    """
    if relative_to != "auto":
        return relative_to
    if step is None or not step.kind:
        return "trace"
    if step.kind not in NAMELESS:
        return "row"
    tasks = tasks_of(step.names)
    return tasks if any(tasks) else "trace"


class _Projection(GramianAggregator):
    """The common arguments of UPGrad and DualProj, which differ in what they project."""

    keeps_small_tasks = True
    _solve: ClassVar[Callable[..., tuple[Tensor, float]]]

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
        weights, self.residual = self._solve(
            gramian,
            self._targets(gramian, None if step is None else step.names),
            reg=self.reg,
            relative_to=scale_of_reg(self.relative_to, step),
            solver=self.solver,
            tolerance=self.tolerance,
        )
        return weights

    def _targets(self, gramian: Tensor, names: Sequence[str] | None) -> Tensor | None:
        return preference_for(self.preference, gramian, names)


@register
class UPGrad(_Projection):
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

    properties = frozenset(
        {
            Property.NON_CONFLICTING,
            Property.LINEAR_UNDER_SCALING,
            Property.WEIGHTED,
            Property.PERMUTATION_INVARIANT,
        }
    )
    _solve = staticmethod(upgrad_solution)

    @override
    def _targets(self, gramian: Tensor, names: Sequence[str] | None) -> Tensor | None:
        return None if self.preference is None else super()._targets(gramian, names)


@register
class DualProj(_Projection):
    r"""The mean of the rows of :math:`J`, projected onto the dual cone of the rows.

    .. math::
        \mathcal A(J) = \pi_J(J^\top p), \qquad
        \pi_J(g) = \operatorname*{arg\,min}_{d \,:\, J d \succeq 0} \lVert d - g \rVert .

    Its weights minimise :math:`v^\top H v` over :math:`v \succeq p`, with :math:`H = G = J J^\top`,
    or :math:`H = G + \text{reg}\, \operatorname{diag}(s)`. The claimed properties hold for
    ``reg=0``. Arguments, attributes, errors, the scale :math:`s` and the bound for ``reg > 0`` are
    those of :class:`~lightning_jd.aggregators.UPGrad`, with :math:`p` for its :math:`p_i`.

    Example:
        >>> import torch
        >>> DualProj(reg=0)(torch.tensor([[2.0, 0.0], [-4.0, 4.0]]))
        tensor([0., 2.])

    References:
        Lopez-Paz and Ranzato, *Gradient Episodic Memory for Continual Learning*, NeurIPS 2017.
    """

    properties = frozenset(
        {Property.NON_CONFLICTING, Property.WEIGHTED, Property.PERMUTATION_INVARIANT}
    )
    _solve = staticmethod(dual_cone_solution)


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

    properties = frozenset(
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
        target[position_of(self.primary, step)] = 1
        scale = scale_of_reg(self.relative_to, step)
        return dual_cone_weights(
            gramian, target, reg=self.reg, relative_to=scale, solver=self.solver
        )

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        check_square("gramian", gramian)
        return self.weigh(gramian, Step.bare(len(gramian)))


def position_of(primary: str | int, step: Step) -> int:
    """The row of the primary objective, which is given by name or position."""
    m = len(step.names)
    if isinstance(primary, int) and not isinstance(primary, bool) and -m <= primary < m:
        return primary % m
    if primary in step.names:
        return step.names.index(str(primary))
    listed = ", ".join(map(repr, step.names[:10])) + (", ..." if m > 10 else "")
    raise ArgumentError(
        f"`primary` must be one of the objectives of every step, got {primary!r} where they "
        f"are {listed}."
    )

"""MoDo and SDMGrad: MGDA step by step, from two independent samples."""

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._arguments import (
    PerObjective,
    checked_integer,
    checked_preference,
    not_negative,
    positive,
    preference_for,
    share,
)
from lightning_jd.aggregators._base import Property, check_gramian
from lightning_jd.aggregators._halves import Halves
from lightning_jd.aggregators._memory import StatefulGramianAggregator, recalled_on_simplex
from lightning_jd.aggregators._precision import in_float64
from lightning_jd.aggregators._registry import register
from lightning_jd.aggregators._step import Step
from lightning_jd.linalg import simplex_projection


@register
class MoDo(StatefulGramianAggregator):
    r"""Multi-objective gradient with double sampling: MGDA step by step, from two samples.

    .. math::
        \lambda \leftarrow \Pi_\Delta\bigl(\lambda - \gamma (J_1 J_2^\top + \rho I) \lambda\bigr),
        \qquad \mathcal A = \tfrac12 (J_1 + J_2)^\top \lambda,

    with :math:`J_1, J_2` the Jacobians of two independent samples, so that
    :math:`J_1 J_2^\top \lambda` is an unbiased estimate, and :math:`\Pi_\Delta` the projection onto
    the simplex. The weights start at 1/m. :math:`\gamma` is not scale-free: for gradients a hundred
    times longer, it should be :math:`10^4` times smaller.

    In training, a matrix of losses (instance and task) is split into two halves of the batch;
    otherwise the samples are alternating micro-batches of one step (``accumulate_grad_batches=2``
    with ``accumulation="step"``). Called with a single Jacobian or Gramian, it is used as both
    samples.

    Args:
        gamma: Step size of the weights, positive.
        rho: Strength of the pull toward equal weights; not negative.

    Raises:
        ArgumentError: If an argument is out of its range.

    Example:
        >>> import torch
        >>> MoDo(gamma=0.1, rho=0.0)(torch.tensor([[1.0, 0.0], [0.0, 3.0]]))
        tensor([0.7000, 0.9000])

    References:
        Chen et al., *Three-Way Trade-Off in Multi-Objective Learning: Optimization, Generalization
        and Conflict-Avoidance*, JMLR 2024.
    """

    halves: bool = True
    properties = frozenset({Property.WEIGHTED, Property.PERMUTATION_INVARIANT})

    def __init__(self, gamma: float = 0.1, rho: float = 0.1) -> None:
        super().__init__()
        self.gamma = positive("gamma", gamma)
        self.rho = not_negative("rho", rho)

    @override
    def weigh(self, gramian: Tensor, step: Step) -> Tensor:
        check_gramian(gramian)
        halves = Halves.of(step)
        memory, G = self.memory(step), in_float64(gramian)
        weights = recalled_on_simplex(memory, halves.names, G)
        if (A := halves.between(G)) is not None:
            gradient = A @ weights + self.rho * weights
            weights = simplex_projection(weights - self.gamma * gradient)
            memory.keep("weight", halves.names, weights)
        return halves.spread(weights).to(gramian)


@register
class SDMGrad(StatefulGramianAggregator):
    r"""MGDA from two samples, pulled to a preferred direction (direction-oriented).

    .. math::
        \mathcal A = \tfrac12 (J_1 + J_2)^\top \frac{w + \lambda p}{1 + \lambda},

    where :math:`w` in the simplex results from ``iterations`` steps of projected gradient descent
    with momentum along :math:`A (w + \lambda p)`, started at the weights of the last step, with

    .. math:: A = J_1 J_2^\top / s^2, \qquad s = \frac1m \sum_i \sqrt{\max((J_1 J_2^\top)_{ii}, 0)}

    and :math:`J_1, J_2` the Jacobians of two independent samples. If no diagonal entry is positive,
    the weights do not change.

    In training, a matrix of losses (instance and task) is split into two halves of the batch;
    otherwise the samples are alternating micro-batches of one step (``accumulate_grad_batches=2``
    with ``accumulation="step"``). Called with a single Jacobian or Gramian, it is used as both
    samples. The paper uses a third sample for the update; here the same two are used.

    Args:
        lr: Step size, positive.
        momentum: At least 0 and less than 1.
        iterations: At least 1.
        pull: :math:`\lambda`, the strength of the pull toward the preferred direction.
        preference: :math:`p`, one positive number per task, in their order or by
            name; ``None`` is 1/m each.

    Raises:
        ArgumentError: If an argument is out of its range.
        ShapeError: When called, if ``preference`` does not have one entry per task.

    Example:
        >>> SDMGrad(pull=0.0)(torch.tensor([[1.0, 0.0], [0.0, 3.0]]))
        tensor([1., 0.])

    References:
        Xiao, Ban and Ji, *Direction-oriented Multi-objective Learning: Simple and Provable
        Stochastic Algorithms*, NeurIPS 2023, arXiv:2305.18409.
    """

    halves: bool = True
    properties = frozenset({Property.WEIGHTED, Property.PERMUTATION_INVARIANT})

    def __init__(
        self,
        lr: float = 10.0,
        momentum: float = 0.5,
        iterations: int = 20,
        pull: float = 0.3,
        preference: PerObjective | None = None,
    ) -> None:
        super().__init__()
        self.lr = positive("lr", lr)
        self.momentum = share("momentum", momentum, below_one=True)
        self.iterations = checked_integer("iterations", iterations, least=1)
        self.pull = not_negative("pull", pull)
        self.preference = checked_preference(preference)

    @override
    def weigh(self, gramian: Tensor, step: Step) -> Tensor:
        check_gramian(gramian)
        halves = Halves.of(step)
        memory, G = self.memory(step), in_float64(gramian)
        weights = recalled_on_simplex(memory, halves.names, G)
        p = preference_for(self.preference, weights, halves.names)
        if (A := halves.between(G)) is not None:
            scale = A.diagonal().clamp(min=0).sqrt().mean()
            if bool(scale > 0):
                weights = self._descend(A / scale**2, weights, p)
            memory.keep("weight", halves.names, weights)
        return halves.spread((weights + self.pull * p) / (1 + self.pull)).to(gramian)

    def _descend(self, A: Tensor, w: Tensor, p: Tensor) -> Tensor:
        velocity = torch.zeros_like(w)
        for _ in range(self.iterations):
            velocity = self.momentum * velocity + A @ (w + self.pull * p)
            w = simplex_projection(w - self.lr * velocity)
        return w

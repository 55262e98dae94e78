"""MoDo: weights that take one step per step, from two independent samples."""

from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._arguments import not_negative, positive
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
    properties: ClassVar[frozenset[Property]] = frozenset(
        {Property.WEIGHTED, Property.PERMUTATION_INVARIANT}
    )

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

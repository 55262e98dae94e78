"""ExcessMTL: more weight for tasks that are farther from the best they can reach."""

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._arguments import checked_integer, positive
from lightning_jd.aggregators._base import Property
from lightning_jd.aggregators._memory import StatefulAggregator, recalled_on_simplex
from lightning_jd.aggregators._precision import in_float64
from lightning_jd.aggregators._registry import register
from lightning_jd.aggregators._step import Step


@register
class ExcessMTL(StatefulAggregator):
    r"""Weights that grow with the excess risk of a task, estimated from its gradient.

    .. math::
        \mathcal A(J) = J^\top w, \qquad
        w_i \leftarrow \frac{w_i \exp(\eta\, \hat e_i)}{\sum_k w_k \exp(\eta\, \hat e_k)}, \qquad
        \hat e_i = \frac{e_i}{\bar e_i}, \qquad
        e_i = \sum_{j} \frac{g_{ij}^2}{\sqrt{h_{ij}}},

    with :math:`h_{ij}` the sum of the squares of :math:`g_{ij}` over all steps, and
    :math:`\bar e_i` the mean of :math:`e_i` over the first ``warmup`` steps of task i. The weights
    stay at 1/m during the warm-up.

    It requires the Jacobian and stores :math:`h`, (m, n) numbers.

    Args:
        step_size: :math:`\eta`, positive.
        warmup: The number of steps that estimate the scale of each task; at least 1. (The paper
            uses three epochs.)

    Raises:
        ArgumentError: If an argument is out of its range.

    Example:
        >>> method = ExcessMTL()
        >>> _ = method(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        >>> method(torch.tensor([[0.0, 0.0], [0.0, 1.0]]))  # the first task has converged
        tensor([0.0000, 0.6698])

    References:
        He et al., *Robust Multi-Task Learning with Excess Risks*, ICML 2024.
    """

    properties = frozenset(
        {Property.LINEAR_UNDER_SCALING, Property.WEIGHTED, Property.PERMUTATION_INVARIANT}
    )

    def __init__(self, step_size: float = 1.0, warmup: int = 1) -> None:
        super().__init__()
        self.step_size = positive("step_size", step_size)
        self.warmup = checked_integer("warmup", warmup, least=1)

    @override
    def combine(self, jacobian: Tensor, step: Step) -> Tensor:
        memory, names = self.memory(step), step.names
        J = jacobian.float() if jacobian.dtype.itemsize < 4 else jacobian
        squares = J.square()
        h = memory.recall("squares", names, torch.zeros_like(J)) + squares
        memory.keep("squares", names, h)
        excess = in_float64(torch.where(h > 0, squares / h.sqrt(), 0.0).sum(dim=1))
        count = memory.recall("count", names, torch.zeros_like(excess)) + 1
        total = memory.recall("baseline", names, torch.zeros_like(excess))
        warm = count <= self.warmup
        total = torch.where(warm, total + excess, total)
        memory.keep("count", names, count)
        memory.keep("baseline", names, total)
        baseline = total / self.warmup
        relative = torch.where(baseline > 0, excess / baseline, 0.0)
        relative = torch.where(warm, 0.0, relative)
        weights = recalled_on_simplex(memory, names, excess)
        weights = (weights.log() + self.step_size * relative).softmax(dim=0)
        memory.keep("weight", names, weights)
        return (weights.to(J) @ J).to(jacobian)

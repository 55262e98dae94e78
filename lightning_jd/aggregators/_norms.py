"""Weights from the norms of the gradients alone, as networks that solve equations use them."""

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._arguments import share
from lightning_jd.aggregators._base import GramianAggregator, Property, check_gramian
from lightning_jd.aggregators._memory import StatefulGramianAggregator
from lightning_jd.aggregators._precision import in_float64
from lightning_jd.aggregators._registry import register
from lightning_jd.aggregators._step import NAMELESS, Step, tasks_of


@register
class LRA(StatefulGramianAggregator):
    r"""Learning-rate annealing: weights that make all gradients as long as their sum of norms.

    .. math::
        \mathcal A(J) = J^\top w, \qquad
        w_i \leftarrow \alpha w_i + (1 - \alpha)
        \frac{\sum_{k=1}^{m} \lVert g_k \rVert}{\lVert g_i \rVert}

    The weights of a task start at 1, and stay as they are in a step without gradient.

    This is the form of *An Expert's Guide*. The first paper divides the largest entry of the
    gradient of the residual by the mean absolute entry of the others, which no Gramian tells.

    Args:
        alpha: Decay factor :math:`\alpha` of the weights, from 0 to 1.

    Raises:
        ArgumentError: If :math:`\alpha` is not in [0, 1].

    Example:
        >>> LRA(alpha=0.0)(torch.tensor([[3.0, 0.0], [0.0, 1.0]]))
        tensor([4., 4.])

    References:
        Wang, Sankaran, Wang and Perdikaris, *An Expert's Guide to Training Physics-Informed Neural
        Networks*, arXiv:2308.08468; the idea: Wang, Teng and Perdikaris, *Understanding and
        Mitigating Gradient Flow Pathologies in Physics-Informed Neural Networks*, SIAM Journal on
        Scientific Computing 43, 2021.
    """

    properties = frozenset(
        {Property.LINEAR_UNDER_SCALING, Property.WEIGHTED, Property.PERMUTATION_INVARIANT}
    )
    only_norms = True
    keeps_small_tasks = True

    def __init__(self, alpha: float = 0.9) -> None:
        super().__init__()
        self.alpha = share("alpha", alpha)

    @override
    def weigh(self, gramian: Tensor, step: Step) -> Tensor:
        check_gramian(gramian)
        memory, norms = self.memory(step), in_float64(gramian).diagonal().clamp(min=0).sqrt()
        past = memory.recall("weight", step.names, torch.ones_like(norms))
        newest = torch.where(norms > 0, norms.sum() / norms, past)
        weights = self.alpha * past + (1 - self.alpha) * newest
        memory.keep("weight", step.names, weights)
        return weights.to(gramian)


@register
class NTK(GramianAggregator):
    r"""Weights by the neural tangent kernel: each term of a loss converges at the same rate.

    .. math::
        \mathcal A(J) = J^\top w, \qquad
        w_i = \frac{\operatorname{tr} K}{\operatorname{tr} K_i}, \qquad
        \operatorname{tr} K_i = \sum_{x} \lVert \nabla r_i(x) \rVert^2, \qquad
        \operatorname{tr} K = \sum_{i=1}^{m} \operatorname{tr} K_i

    with the residuals :math:`r_i(x)` of term i. Losses must be squares of residuals,
    :math:`\ell = r^2`, so that :math:`\lVert \nabla r \rVert^2 = \lVert \nabla \ell \rVert^2
    / (4 \ell)`.

    - A matrix of losses, one row per point and one column per term, gives the exact traces. The
      weight of a term is divided equally among its points.
    - For one loss per term, the mean of its squares, :math:`\operatorname{tr} K_i` is
      :math:`\lVert \nabla \sqrt{\ell_i} \rVert^2`, as in NVIDIA PhysicsNeMo. That is at most
      the mean of :math:`\lVert \nabla r_i(x) \rVert^2` over the points.

    A term without gradient has the weight 0. Called with a Jacobian or Gramian only, it takes all
    losses to be 1.

    Example:
        >>> NTK()(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))  # traces 1 and 1/4
        tensor([2.5000, 5.0000])

    References:
        Wang, Yu and Perdikaris, *When and Why PINNs Fail to Train: A Neural Tangent Kernel
        Perspective*, Journal of Computational Physics 449, 2022.
    """

    uses_values: bool = True
    properties = frozenset({Property.WEIGHTED, Property.PERMUTATION_INVARIANT})
    only_norms = True
    keeps_small_tasks = True

    @override
    def weigh(self, gramian: Tensor, step: Step) -> Tensor:
        check_gramian(gramian)
        squares = in_float64(gramian).diagonal().clamp(min=0)
        losses = step.losses_or_ones(squares)
        kernel = torch.where(losses > 0, squares / (4 * losses), 0.0)
        rows = tasks_of(step.names) if step.kind in NAMELESS else tuple(range(len(kernel)))
        term = torch.tensor(rows).to(kernel.device, non_blocking=True)
        summed = torch.stack([kernel, torch.ones_like(kernel)])
        traces, points = summed.new_zeros(2, max(rows) + 1).index_add(1, term, summed)
        weights = torch.where(traces > 0, traces.sum() / traces / points, 0.0)
        return weights[term].to(gramian)

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        return self.weigh(gramian, Step.bare(len(gramian)))

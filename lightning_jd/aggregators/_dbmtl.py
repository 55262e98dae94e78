"""DB-MTL: logarithms of the losses, and momenta of equal length."""

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._arguments import not_negative, share
from lightning_jd.aggregators._balancer import check_positive
from lightning_jd.aggregators._base import Property
from lightning_jd.aggregators._memory import StatefulAggregator
from lightning_jd.aggregators._registry import register
from lightning_jd.aggregators._step import Step


@register
class DBMTL(StatefulAggregator):
    r"""Dual-balancing: logarithms of losses, and gradients rescaled to the longest one.

    .. math::
        \mathcal A(J) = \max_k \lVert y_k \rVert \sum_{i=1}^{m} \frac{y_i}{\lVert y_i \rVert},
        \qquad y_i \leftarrow \beta_t\, y_i + (1 - \beta_t)\, \nabla \log \ell_i, \qquad
        \beta_t = \beta / t^\sigma

    The gradient of :math:`\log \ell_i` is :math:`g_i / \ell_i`. The :math:`y_i` start at zero. A
    task with :math:`y_i = 0` is ignored. It requires the Jacobian and stores one row per task, (m,
    n) numbers.

    Called with a Jacobian only, it takes all losses to be 1.

    Args:
        beta: Decay factor of the moving average, in [0, 1).
        sigma: Decay exponent of ``beta`` over the steps; not negative.

    Raises:
        ArgumentError: If an argument is out of its range; when called, if a loss is not positive.

    Example:
        >>> DBMTL(beta=0.0)(torch.tensor([[3.0, 0.0], [0.0, 1.0]]))
        tensor([3., 3.])

    References:
        Lin et al., *Dual-Balancing for Multi-Task Learning*, arXiv:2308.12029.
    """

    uses_values: bool = True
    properties = frozenset({Property.PERMUTATION_INVARIANT})
    keeps_small_tasks = True

    def __init__(self, beta: float = 0.9, sigma: float = 0.5) -> None:
        super().__init__()
        self.beta = share("beta", beta, below_one=True)
        self.sigma = not_negative("sigma", sigma)

    @override
    def combine(self, jacobian: Tensor, step: Step) -> Tensor:
        J = jacobian.float() if jacobian.dtype.itemsize < 4 else jacobian
        losses = step.losses_or_ones(J)
        check_positive("DBMTL", losses, step)
        memory = self.memory(step)
        past = memory.recall("gradient", step.names, torch.zeros_like(J))
        beta = self.beta / memory.steps**self.sigma
        Y: Tensor = beta * past + (1 - beta) * (J / losses[:, None])
        memory.keep("gradient", step.names, Y)
        lengths = Y.norm(dim=1)
        factors = torch.where(lengths > 0, lengths.max() / lengths, 0.0)
        return (factors @ Y).to(jacobian)

"""MoCo: tracked gradients, whose weights take one step per step."""

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._arguments import not_negative, positive
from lightning_jd.aggregators._base import Property
from lightning_jd.aggregators._memory import StatefulAggregator, recalled_on_simplex
from lightning_jd.aggregators._precision import in_float64
from lightning_jd.aggregators._registry import register
from lightning_jd.aggregators._step import Step
from lightning_jd.errors import ArgumentError
from lightning_jd.linalg import simplex_projection


@register
class MoCo(StatefulAggregator):
    r"""Multi-objective gradient correction: MGDA on moving averages, with less bias.

    .. math::
        y_i &\leftarrow y_i - \beta_t (y_i - g_i), \qquad \beta_t = \beta / t^{\sigma_\beta}, \\
        \lambda &\leftarrow \Pi_\Delta\bigl(\lambda - \gamma_t (Y Y^\top + \rho I) \lambda\bigr),
        \qquad \gamma_t = \gamma / t^{\sigma_\gamma}, \\
        \mathcal A(J) &= Y^\top \lambda,

    with :math:`\Pi_\Delta` the projection onto the simplex. The :math:`y_i` start at zero and the
    weights at 1/m; a task that appears later starts at the mean weight of the others.

    This is the algorithm of the paper. The variant in LibMTL scales each gradient to the size of
    its loss and uses a softmax instead of the projection. Here :math:`\gamma` is not scale-free:
    for gradients a hundred times longer, it should be :math:`10^4` times smaller.

    It requires the Jacobian and stores one row per task, (m, n) numbers.

    Args:
        beta: Weight of the newest gradient in the moving average, in (0, 1].
        beta_sigma: Decay exponent of this step size; not negative.
        gamma: Step size of the weights; positive.
        gamma_sigma: Decay exponent of this step size; not negative.
        rho: Strength of the pull toward equal weights; not negative.

    Raises:
        ArgumentError: If an argument is out of its range.

    Example:
        >>> MoCo(beta=1.0)(torch.tensor([[1.0, 0.0], [0.0, 3.0]]))
        tensor([0.7000, 0.9000])

    References:
        Fernando et al., *Mitigating Gradient Bias in Multi-objective Learning: A Provably
        Convergent Approach*, ICLR 2023.
    """

    properties = frozenset({Property.PERMUTATION_INVARIANT})

    def __init__(
        self,
        beta: float = 0.5,
        beta_sigma: float = 0.5,
        gamma: float = 0.1,
        gamma_sigma: float = 0.5,
        rho: float = 0.0,
    ) -> None:
        super().__init__()
        if not 0 < beta <= 1:
            raise ArgumentError(f"`beta` must be more than 0 and at most 1, got {beta}.")
        self.beta = float(beta)
        self.beta_sigma = not_negative("beta_sigma", beta_sigma)
        self.gamma = positive("gamma", gamma)
        self.gamma_sigma = not_negative("gamma_sigma", gamma_sigma)
        self.rho = not_negative("rho", rho)

    @override
    def combine(self, jacobian: Tensor, step: Step) -> Tensor:
        memory, names = self.memory(step), step.names
        J = jacobian.float() if jacobian.dtype.itemsize < 4 else jacobian
        past = memory.recall("gradient", names, torch.zeros_like(J))
        Y: Tensor = past + self.beta / memory.steps**self.beta_sigma * (J - past)
        memory.keep("gradient", names, Y)
        G = in_float64(Y @ Y.T)
        weights = recalled_on_simplex(memory, names, G)
        gamma = self.gamma / memory.steps**self.gamma_sigma
        weights = simplex_projection(weights - gamma * (G @ weights + self.rho * weights))
        memory.keep("weight", names, weights)
        return (weights.to(Y) @ Y).to(jacobian)

"""Nash-MTL: the bargaining solution between the objectives."""

import math
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._base import GramianAggregator, Property, check_gramian
from lightning_jd.aggregators._fairness import fair_weights
from lightning_jd.aggregators._precision import in_float64, relative_tolerance
from lightning_jd.aggregators._registry import register
from lightning_jd.errors import ArgumentError


@register
class NashMTL(GramianAggregator):
    r"""The direction in a ball that maximises the product of all improvements.

    .. math::
        \mathcal A(J) = \operatorname*{arg\,max}_{\lVert d \rVert \le \epsilon,\ J d \succeq 0}
        \sum_{i=1}^{m} \log (g_i^\top d) = \frac{\epsilon}{\sqrt m} J^\top a,
        \qquad G a = \frac1a \text{ (element-wise)}, \quad a \succ 0,

    with :math:`g_i` the rows of :math:`J` and :math:`G = J J^\top`. The equation for :math:`a` is
    solved by damped Newton steps on :math:`\frac12 a^\top G a - \sum_i \log a_i`, for rows scaled
    to norm one: O(m³) each, and one host synchronisation each.

    The update has norm :math:`\epsilon` at every scale of the gradients, so the learning rate alone
    sets the step length. If no direction improves all objectives (a Pareto-stationary point, or a
    zero row), the maximum does not exist and the update is zero. A point counts as stationary if a
    convex combination of the rows scaled to norm one has a squared norm of at most
    :math:`10 \varepsilon`, with :math:`\varepsilon` the machine precision of the dtype of the
    Gramian.

    This is the definition of Quinton and Rey, without the heuristics of the original code (new
    weights every few steps only, a limited number of approximate solves, clipping).

    Args:
        epsilon: Norm of the update, positive.

    Raises:
        ArgumentError: If ``epsilon`` is not positive and finite.

    Example:
        >>> import torch
        >>> NashMTL()(torch.tensor([[4.0, 0.0], [0.0, 0.1]]))
        tensor([0.7071, 0.7071])
        >>> NashMTL()(torch.tensor([[1.0], [-2.0]]))
        tensor([0.])

    References:
        Navon et al., *Multi-Task Learning as a Bargaining Game*, ICML 2022.
    """

    properties: ClassVar[frozenset[Property]] = frozenset(
        {Property.NON_CONFLICTING, Property.WEIGHTED, Property.PERMUTATION_INVARIANT}
    )
    keeps_small_tasks = True

    def __init__(self, epsilon: float = 1.0) -> None:
        super().__init__()
        if not 0 < epsilon < math.inf:
            raise ArgumentError(
                f"`epsilon` must be positive and finite, got {epsilon}. "
                "It is the norm of the update."
            )
        self.epsilon = float(epsilon)

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        check_gramian(gramian)
        G = in_float64(gramian)
        norms = G.diagonal().clamp(min=0).sqrt()
        if not bool((norms > 0).all()):
            return gramian.new_zeros(len(gramian))
        cosines = G / norms / norms[:, None]
        tolerance = relative_tolerance(1, gramian.dtype)
        x = fair_weights(cosines, torch.ones_like(norms), 1.0, tolerance, "Nash-MTL")
        a = torch.zeros_like(norms) if x is None else x / norms
        return a.mul(self.epsilon / len(a) ** 0.5).to(gramian)

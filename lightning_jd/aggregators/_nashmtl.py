"""Nash-MTL: the bargaining solution between the objectives."""

import math
import warnings
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._base import GramianAggregator, Property, check_gramian
from lightning_jd.aggregators._precision import in_float64, relative_tolerance
from lightning_jd.aggregators._registry import register
from lightning_jd.errors import ArgumentError

_MAX_STEPS = 200  # a safeguard: 5 to 20 steps are usual, also next to stationary points


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

    The update has norm :math:`\epsilon` whatever the scale of the gradients, so the learning rate
    alone decides how far a step goes. If no direction improves all objectives (the point is Pareto
    stationary, or a row is zero) the maximum does not exist; the weights are then zero, hence the
    update. A point counts as stationary if a convex combination of the rows scaled to norm one has
    a squared norm of at most :math:`10 \varepsilon`, with :math:`\varepsilon` the machine precision
    of the dtype of the Gramian.

    This is the definition in Quinton and Rey, without the heuristics of the original code (updates
    of the weights every few steps, a bounded number of approximate solves, clipping).

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
        x = _bargain(cosines, relative_tolerance(1, gramian.dtype))
        a = torch.zeros_like(norms) if x is None else x / norms
        return a.mul(self.epsilon / len(a) ** 0.5).to(gramian)


def _bargain(C: Tensor, tolerance: float) -> Tensor | None:
    """Solve ``x * (C @ x) = 1`` for ``x > 0``; ``None`` if C has a zero direction ``v >= 0``.

    The unknown of a Newton step is the relative change ``s = dx / x``. Then the Hessian is the
    identity plus a positive semi-definite matrix, however badly conditioned C is.
    """
    m, eps = len(C), torch.finfo(C.dtype).eps
    x = (m / C.sum().clamp(min=1.0)).sqrt().expand(m)
    for _ in range(_MAX_STEPS):
        gains = x * (C @ x)
        P = x[:, None] * C * x
        s = _solve_shifted(P, 1 - gains)
        rounding = 4 * eps * P.abs().sum(dim=1).norm()
        decrement = (s @ (1 - gains)).clamp(min=0).sqrt()
        t = torch.where(decrement < 0.25, 1.0, _step_length(P, gains, s, decrement))
        flatness = gains.sum() / x.sum() ** 2  # vᵀCv of the convex combination v = x / sum(x)
        x = x * (1 + t * s)
        stationary, done = torch.stack(
            [flatness <= tolerance, decrement <= rounding.clamp(min=1e-9)]
        ).tolist()
        if stationary:
            return None
        if done:
            # Next to a stationary point rounding may spoil it: better no answer than a wrong one.
            return x if bool((x * (C @ x) > 0.5).all()) else None
    warnings.warn(
        f"Nash-MTL must find its weights in {_MAX_STEPS} Newton steps, got none: the update of "
        "this step is zero. Please report the Gramian.",
        RuntimeWarning,
        stacklevel=3,
    )
    return None


def _step_length(P: Tensor, gains: Tensor, s: Tensor, decrement: Tensor) -> Tensor:
    """The best of a few step lengths; with the damped Newton step among them, it converges."""
    damped = 1 / (1 + decrement)
    t = torch.cat([damped[None], damped.new_tensor([0.25, 0.5, 1.0, 2.0, 4.0, 8.0])])
    decrease = t * (gains @ s) + t**2 / 2 * (s @ P @ s) - torch.log1p(t[:, None] * s).sum(dim=1)
    return t[decrease.nan_to_num(nan=math.inf).argmin()]  # NaN: the step would leave x > 0


def _solve_shifted(P: Tensor, right: Tensor) -> Tensor:
    """Solve ``(P + I) s = right`` for P positive semi-definite up to rounding."""
    H = P.clone()
    H.diagonal().add_(1.0)
    L, failed = torch.linalg.cholesky_ex(H)
    if not bool(failed):
        return torch.cholesky_solve(right[:, None], L)[:, 0]
    eigenvalues, E = torch.linalg.eigh(P)
    solution: Tensor = E @ ((E.T @ right) / (eigenvalues.clamp(min=0) + 1))
    return solution

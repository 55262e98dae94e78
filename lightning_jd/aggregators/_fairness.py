"""Nash-MTL and FairGrad, whose common equation damped Newton steps solve."""

import math
import warnings

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._arguments import positive
from lightning_jd.aggregators._base import GramianAggregator, Property, check_gramian
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

    properties = frozenset(
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


@register
class FairGrad(GramianAggregator):
    r"""The direction that maximises an alpha-fair utility of all improvements.

    .. math::
        \mathcal A(J) = J^\top w, \qquad G w = w^{-1/\alpha} \text{ (element-wise)}, \quad w \succ 0

    For :math:`\alpha = 1` the direction is that of :class:`~lightning_jd.aggregators.NashMTL`; a
    larger :math:`\alpha` emphasises the smallest improvement. The equation is the optimality
    condition of a convex program, which damped Newton steps solve for rows scaled to norm one. If
    no direction improves all objectives (a Pareto-stationary point, or a zero row), there is no
    solution and the update is zero; the threshold is that of Nash-MTL.

    The update does not scale linearly: scaling all gradients by :math:`t` scales it by
    :math:`t^{(1 - \alpha) / (1 + \alpha)}`.

    Args:
        alpha: The fairness parameter :math:`\alpha`; positive.

    Raises:
        ArgumentError: If ``alpha`` is not positive and finite, or too small for the norms of the
            rows.

    Example:
        >>> import torch
        >>> FairGrad(alpha=1.0)(torch.tensor([[4.0, 0.0], [0.0, 0.1]]))
        tensor([1., 1.])

    References:
        Ban and Ji, *Fair Resource Allocation in Multi-Task Learning*, ICML 2024, arXiv:2402.15638.
    """

    properties = frozenset(
        {Property.NON_CONFLICTING, Property.WEIGHTED, Property.PERMUTATION_INVARIANT}
    )
    keeps_small_tasks = True

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self.alpha = positive("alpha", alpha)

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        check_gramian(gramian)
        G, p = in_float64(gramian), 1 / self.alpha
        norms = G.diagonal().clamp(min=0).sqrt()
        if not bool((norms > 0).all()):
            return gramian.new_zeros(len(gramian))
        scale = norms.log().mean().exp()  # common to all rows: x is then of order one
        relative = norms / scale
        cosines = G / norms / norms[:, None]
        tolerance = relative_tolerance(1, gramian.dtype)
        # With w = x / norm, row i of the equation is (C x)_i = norm_i^(p - 1) x_i^(-p).
        try:
            x = fair_weights(cosines, relative ** (p - 1), p, tolerance, "FairGrad")
        except RuntimeError as error:  # LinAlgError is one
            raise ArgumentError(
                "`alpha` must be large enough for weights that float64 can compute, got "
                f"alpha={self.alpha} for rows with norms from {float(norms.min()):.3g} to "
                f"{float(norms.max()):.3g}. Choose a larger alpha (0.5 or more), or normalise the "
                "losses."
            ) from error
        if x is None:
            return gramian.new_zeros(len(gramian))
        weights: Tensor = x / relative * scale ** (-2 / (1 + p))
        return weights.to(gramian)


_MAX_STEPS = 200  # a safeguard: 5 to 20 steps are usual, also next to stationary points


def fair_weights(C: Tensor, b: Tensor, p: float, tolerance: float, method: str) -> Tensor | None:
    r"""Solve :math:`(C x)_i = b_i x_i^{-p}` for :math:`x \succ 0`.

    The solution minimises :math:`\frac12 x^\top C x - \sum_i b_i \frac{x_i^{1-p} - 1}{1 - p}`,
    which is convex (for p = 1 the fraction is the logarithm). The unknown of a Newton step is the
    relative change ``s = dx / x``. Scaled by its second part, the Hessian is then the identity plus
    a positive semi-definite matrix, however badly conditioned C is. An entry that is to shrink by
    ``s < 0`` is divided by ``1 - s``, which is the same to first order and stays positive: for a
    small p, entries of the solution may be apart by many orders.

    Args:
        C: Positive semi-definite with unit diagonal, float64.
        b: Positive, shape (m,).
        p: Positive.
        tolerance: A convex combination v with vᵀCv of at most this counts as zero.
        method: Who asks, for the warning.

    Returns:
        The solution; ``None`` if C has a zero direction ``v >= 0``, where there is none.

    Raises:
        RuntimeError: If float64 is too coarse for a large p.
    """
    m, eps = len(C), torch.finfo(C.dtype).eps
    x = (b.sum() / C.sum().clamp(min=1.0)).pow(1 / (1 + p)).expand(m)
    for _ in range(_MAX_STEPS):
        gains, claims = x * (C @ x), b * x ** (1 - p)
        P = x[:, None] * C * x
        root = (p * claims).rsqrt()
        s = root * _solve_shifted(root[:, None] * P * root, root * (claims - gains))
        rounding = 4 * eps * (root * P.abs().sum(dim=1)).norm()
        decrement = (s @ (claims - gains)).clamp(min=0).sqrt()
        usual = claims.mean().sqrt()  # 1 for p = 1 and b = 1
        is_near = (decrement < 0.25 * usual) & (s.abs().max() < 0.25)
        t = torch.where(is_near, 1.0, _step_length(P, gains, claims, p, s, decrement / usual))
        flatness = gains.sum() / x.sum() ** 2  # vᵀCv of the convex combination v = x / sum(x)
        x = x * (1 + _change(t * s))
        # Tiny entries count for little in the program, and as much as others in the answer.
        is_exact = (decrement <= torch.maximum(rounding, 1e-9 * usual)) & (s.abs().max() <= 1e-4)
        stationary, done = torch.stack([flatness <= tolerance, is_exact]).tolist()
        if stationary:
            return None
        if done:
            # Next to a stationary point rounding may spoil it: better no answer than a wrong one.
            return x if bool((x**p * (C @ x) > 0.5 * b).all()) else None
    if p > 2:  # a small alpha, which the caller can name
        raise RuntimeError("no convergence")
    warnings.warn(
        f"{method} did not converge in {_MAX_STEPS} Newton steps: the update of this step is "
        "zero. Please report the Gramian.",
        RuntimeWarning,
        stacklevel=3,
    )
    return None


def _step_length(
    P: Tensor, gains: Tensor, claims: Tensor, p: float, s: Tensor, decrement: Tensor
) -> Tensor:
    """The best of a few step lengths; with the damped Newton step among them, it converges."""
    damped = 1 / (1 + decrement)
    t = torch.cat([damped[None], damped.new_tensor([0.25, 0.5, 1.0, 2.0, 4.0, 8.0])])
    u = _change(t[:, None] * s)  # one row per length
    logs = torch.log1p(u)
    grown = logs if p == 1 else torch.expm1((1 - p) * logs) / (1 - p)
    decrease = u @ gains + ((u @ P) * u).sum(dim=1) / 2 - (claims * grown).sum(dim=1)
    return t[decrease.nan_to_num(nan=math.inf).argmin()]


def _change(s: Tensor) -> Tensor:
    """The relative change that is s to first order, and more than -1."""
    return torch.where(s < 0, s / (1 - s), s)


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

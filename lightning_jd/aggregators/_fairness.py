"""The equation behind Nash-MTL and FairGrad, solved by damped Newton steps."""

import math
import warnings

import torch
from torch import Tensor

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

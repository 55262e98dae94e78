"""The order of the stages: guess, pivot, pivot with a proximal term, interior point.

Solves ``z >= 0, w = Cz + q >= 0, zᵀw = 0`` for every row q of ``Q``; ``C`` has a unit diagonal.
Each stage hands the rows that it did not finish to a more robust one; the best answer is kept.

Where ``C`` is singular, z is not unique (though ``Cz`` is). The proximal stage starts from zero and
its term is small, so that it returns the shortest z: the limit of vanishing regularisation.
"""

import torch
from torch import Tensor

from lightning_jd.linalg._guess import guess_positive
from lightning_jd.linalg._interior import interior_point
from lightning_jd.linalg._pivoting import pivot

TOLERANCE = 1e-12  # of the natural residual
WELL_CONDITIONED = 5e-5  # least eigenvalue at which pivoting in any order is accurate
UNIQUE = 1e-7  # least eigenvalue from which z is unique for all practical purposes
PROXIMAL, LEAST_PROXIMAL = 1e-8, 1e-12  # added to the diagonal, and taken back step by step
PROXIMAL_STEPS = 12
ROUNDS = 12  # of pivoting; what takes more cycles, or nearly so
POLISH = 3  # rounds after an interior point


def natural_residual(C: Tensor, Q: Tensor, Z: Tensor) -> Tensor:
    """``max_j |min(z_j, w_j)| / (1 + max_j z_j)`` of every row: zero exactly at a solution."""
    W = torch.addmm(Q, Z, C)
    return torch.minimum(Z, W).abs_().amax(dim=1) / (1 + Z.amax(dim=1))


def solve(C: Tensor, Q: Tensor, noise: float) -> Tensor:
    """Solve all rows of ``Q`` (k, m); the eigenvalues of ``C`` are known up to ``noise``."""
    positive = guess_positive(C, Q)
    if is_positive_definite(C, WELL_CONDITIONED):
        Z, _ = pivot(C, Q, positive, rounds=ROUNDS)
        return _finish(C, Q, Z, positive)
    return _finish(least_shift(C, noise), Q, torch.zeros_like(Q), positive)


def _finish(C: Tensor, Q: Tensor, Z: Tensor, positive: Tensor) -> Tensor:
    """Improve the rows of ``Z`` that are not solved yet, by the robust stages."""
    residual = natural_residual(C, Q, Z)
    rows = (~(residual <= TOLERANCE)).nonzero().flatten()  # host sync; NaN counts as unsolved
    if len(rows) > 0:
        q, before = Q[rows], Z[rows].nan_to_num_(0.0)
        z = _proximal(C, q, positive[rows])
        better = natural_residual(C, q, z) < natural_residual(C, q, before)
        Z[rows] = torch.where(better[:, None], z, before)
    return Z


def _proximal(C: Tensor, Q: Tensor, positive: Tensor) -> Tensor:
    """Solve with ``C + εI``; move the centre of the proximal term until ε has no effect.

    A step divides the error along an eigenvalue λ by ``1 + λ / ε``, so that ε has to decrease for
    the smallest ones. It starts well above rounding: with a centre of zero, that is what selects
    the shortest solution.
    """
    epsilon = 0.0 if is_positive_definite(C, UNIQUE) else PROXIMAL
    identity = torch.eye(len(C), dtype=C.dtype, device=C.device)
    Z = torch.zeros_like(Q)
    rows = torch.arange(len(Q), device=C.device)
    for _ in range(PROXIMAL_STEPS):
        q = Q[rows]
        z = _pivot_or_interior(C + epsilon * identity, q - epsilon * Z[rows], positive)
        Z[rows] = z
        left = (~(natural_residual(C, q, z) <= TOLERANCE)).nonzero().flatten()  # host sync
        rows, positive = rows[left], z[left] > 0
        if len(rows) == 0 or epsilon == 0:
            break
        epsilon = max(epsilon / 4, LEAST_PROXIMAL)
    return Z


def _pivot_or_interior(H: Tensor, Q: Tensor, positive: Tensor) -> Tensor:
    """Pivot; where that cycles, find the sets by an interior point, and pivot from there."""
    Z, cycling = pivot(H, Q, positive, rounds=ROUNDS)
    if len(cycling) > 0:
        q = Q[cycling]
        z = interior_point(H, q, tolerance=TOLERANCE / 10)
        exact, _ = pivot(H, q, z > torch.addmm(q, z, H), rounds=POLISH)
        better = natural_residual(H, q, exact) <= natural_residual(H, q, z)
        Z[cycling] = torch.where(better[:, None], exact, z)
    return Z


def is_positive_definite(C: Tensor, least: float) -> bool:
    """Whether every eigenvalue of ``C`` is above ``least``."""
    shifted = C - least * torch.eye(len(C), dtype=C.dtype, device=C.device)
    return not bool(torch.linalg.cholesky_ex(shifted).info)  # host sync


def least_shift(C: Tensor, noise: float) -> Tensor:
    """Add the least multiple of the identity that lifts the eigenvalues of ``C`` above the noise.

    A negative eigenvalue, which no Gramian has, says how large the noise is.
    """
    least = torch.linalg.eigvalsh(C)[0]
    level = torch.clamp(-least, min=noise)
    return C + torch.clamp(level - least, min=0) * torch.eye(len(C), dtype=C.dtype, device=C.device)

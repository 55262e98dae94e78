"""On a CPU: guess and pivot in NumPy, where a call costs a third of torch's.

That decides for few objectives. Many are solved by products first, see
:mod:`lightning_jd.linalg._products`, and by pivoting where that fails. Only the fast stages live
here, for a well-conditioned matrix. What they cannot solve goes to
:mod:`lightning_jd.linalg._stages`.
"""

from contextlib import suppress
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from lightning_jd.linalg import _pivoting, _stages
from lightning_jd.linalg._arrays import Array, Mask, is_positive_definite
from lightning_jd.linalg._lapack import inverse
from lightning_jd.linalg._principal import PrincipalSystems, Rows
from lightning_jd.linalg._products import solve_by_products
from lightning_jd.linalg._single import exchange

ALL = slice(None)
MASKED = 16  # up to this m, systems of full size with rows of the identity beat gathering
ROUNDS = 6  # then the rows that are left are finished one by one
FEW = 4  # so many are finished one by one in any round, unless systems are masked

# Above these m, products of matrices take less time than systems: in float32, which reaches
# tolerances of SINGLE, and in float64.
PRODUCTS, EXACT_PRODUCTS = 96, 200
SINGLE = 5e-7

# The guess. Small problems take few iterations; above FIXED it pays to look when to stop.
MASKED_RHO, RHO = 0.8, 0.6
FIXED, FIRST, BURST, LAST = 48, 12, 4, 32
SETTLED = 0.15  # share of rows that may still change: pivoting repairs them at less cost
# Where so many entries still change after the first iterations, most eigenvalues are tiny.
UNSETTLED, SLOW_RHO, SLOW_ITERATIONS = 0.009, 0.05, 36


class Solved(NamedTuple):
    """``Z >= 0`` (k, m), and the largest natural residual of its rows."""

    Z: Array
    residual: float


def solve(
    C: Array,
    Q: Array,
    noise: float,
    *,
    well_conditioned: bool,
    tolerance: float = _stages.TOLERANCE,
) -> Solved:
    """Solve all rows of ``Q`` (k, m); the eigenvalues of ``C`` are known up to ``noise``."""
    few = len(C) <= (PRODUCTS if tolerance >= SINGLE else EXACT_PRODUCTS)
    if well_conditioned or is_positive_definite(C, _stages.WELL_CONDITIONED):
        with suppress(np.linalg.LinAlgError, RuntimeError):
            pivoted = _solved(*_pivot(C, Q, _guess_positive(C, Q))) if few else None
            found = pivoted or _many(C, Q, tolerance)
            if found.residual <= tolerance:
                return found
    matrix, sides = torch.from_numpy(C), torch.from_numpy(Q)
    Z = _stages.solve(matrix, sides, noise)
    return Solved(Z.numpy(), float(_stages.natural_residual(matrix, sides, Z).amax()))


def _solved(Z: Array, W: Array) -> Solved:
    # A row that is not solved has a negative entry here, or there: clamp only afterwards.
    residual = np.abs(np.minimum(Z, W))
    worst = residual.max()
    if worst > _stages.TOLERANCE:
        residual /= 1 + Z.max(axis=1, keepdims=True)
        worst = residual.max()
    return Solved(np.maximum(Z, 0, out=Z), float(worst))


def _many(C: Array, Q: Array, tolerance: float) -> Solved:
    """By products of matrices; what they leave is pivoted."""
    dtype = torch.float32 if tolerance >= SINGLE else torch.float64
    matrix = torch.from_numpy(C).to(dtype)
    sides = matrix if Q is C else torch.from_numpy(Q).to(dtype)
    found = solve_by_products(matrix, sides, tolerance)
    Z, residual = found.Z.numpy(), found.residual
    if len(found.left) > 0:
        rows = found.left.numpy()
        rest = _solved(*_pivot(C, Q if len(rows) == len(Q) else Q[rows], found.positive.numpy()))
        Z = Z.astype(np.float64, copy=False)
        Z[rows], residual = rest.Z, max(residual, rest.residual)
    return Solved(Z, residual)


def _guess_positive(C: Array, Q: Array) -> Mask:
    """Which entries of z are probably positive, by the modulus iteration.

    It is the guess of :mod:`lightning_jd.linalg._guess` without damping: a call less in a round.
    """
    m = len(C)
    if m <= MASKED:
        step, constant = _iteration(C, Q, MASKED_RHO)
        return _iterate(constant.copy(), step, constant, 6 + m // 4) > 0
    step, constant = _iteration(C, Q, RHO, np.float32)
    x = constant.copy()
    positive: Mask = _iterate(x, step, constant, FIRST) > 0
    for iteration in range(FIRST, LAST, BURST):
        before, positive = positive, _iterate(x, step, constant, BURST) > 0
        changed = before != positive
        if iteration == FIRST and np.count_nonzero(changed) > UNSETTLED * changed.size:
            return _slow_guess(C, Q)
        if m <= FIXED or np.count_nonzero(changed.any(axis=1)) <= SETTLED * len(Q):
            break
    return positive


def _slow_guess(C: Array, Q: Array) -> Mask:
    step, constant = _iteration(C, Q, SLOW_RHO, np.float32)
    return _iterate(constant.copy(), step, constant, SLOW_ITERATIONS) > 0


def _iteration(
    C: Array, Q: Array, rho: float, dtype: DTypeLike = np.float64
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The matrix and the constant of ``x <- |x| step + constant``."""
    diagonal = slice(None, None, len(C) + 1)
    N = C.astype(dtype)
    N.flat[diagonal] += rho
    N = inverse(N)
    if Q is C:  # UPGrad: CN = I - ρN
        constant = N * rho
        constant.flat[diagonal] -= 1
    else:
        constant = Q.astype(dtype, copy=False) @ -N
    N *= 2 * rho
    N.flat[diagonal] -= 1
    return N, constant


def _iterate(
    x: NDArray[Any], step: NDArray[Any], constant: NDArray[Any], times: int
) -> NDArray[Any]:
    """``x <- |x| step + constant``, in place."""
    modulus = np.empty_like(x)
    for _ in range(times):
        np.abs(x, out=modulus)
        np.matmul(modulus, step, out=x)
        np.add(x, constant, out=x)
    return x


def _pivot(C: Array, Q: Array, positive: Mask) -> tuple[Array, Array]:
    """``Z`` and ``W = ZC + Q`` by block principal pivoting from the sets ``positive``.

    Rows that do not finish at all are left with entries of the wrong sign.
    """
    systems = _Masked(C, Q) if len(C) <= MASKED else PrincipalSystems(C, Q)
    return _rounds(systems, C, Q, positive)


def _rounds(
    systems: "_Masked | PrincipalSystems", C: Array, Q: Array, positive: Mask
) -> tuple[Array, Array]:
    Z = z = systems.solve(ALL, positive)
    W = w = z @ C
    w += Q
    rows: NDArray[np.intp] | None = None
    for round_ in range(ROUNDS + 1):
        limit = z.max(axis=1, keepdims=True)
        limit += 1
        limit *= -_pivoting.WRONG_SIGN
        # Comparisons of masks: to select numbers at random takes ten times as long.
        wrong = (z < limit) & positive | (w < limit) & ~positive
        left = wrong.any(axis=1)
        if not left.any():
            break
        rows = left.nonzero()[0] if rows is None else rows[left]
        positive = (positive ^ wrong)[left]
        if round_ == ROUNDS or (len(rows) <= FEW and len(C) > MASKED):
            for row, guess in zip(rows, positive, strict=True):
                found = exchange(C, Q[row], guess)
                if found is not None:
                    Z[row], W[row] = found
            break
        z = systems.solve(rows, positive)
        w = z @ C
        w += Q[rows]
        Z[rows], W[rows] = z, w
    return Z, W


class _Masked:
    """``C_PP z_P = -q_P`` as systems of full size, with rows of the identity outside P."""

    def __init__(self, C: Array, Q: Array) -> None:
        # Both signs are turned, instead of that of every right-hand side.
        self.C, self.identity, self.Q = -C, -np.eye(len(C)), Q

    def solve(self, rows: Rows, positive: Mask) -> Array:
        A = np.where(positive[:, :, None] & positive[:, None, :], self.C, self.identity)
        b = self.Q[rows] * positive
        return cast(Array, np.linalg.solve(A, b[:, :, None])[:, :, 0])

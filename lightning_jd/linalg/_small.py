"""Few objectives on a CPU: the same algorithm in NumPy, where a call costs a third of torch's.

Only the fast stages live here, for a well-conditioned matrix. Rows that they leave go to the robust
stages of :mod:`lightning_jd.linalg._stages`.
"""

from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_jd.linalg import _guess, _pivoting, _stages

Array: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]
Rows: TypeAlias = NDArray[np.intp] | slice

ALL = slice(None)
MODERATE = (1e-290, 1e290)  # no sum or square root of these overflows or loses digits
MASKED = 16  # up to this m, systems of full size with rows of the identity beat gathering
ROUNDS = 5
FIRST, BURST, LAST = 10, 4, 34  # of the guess; checks are cheaper here than on an accelerator
TINY_RHO, TINY_ITERATIONS = 0.6, 7  # of the guess up to m = MASKED, unchecked


class UnitDiagonalArray(NamedTuple):
    """The NumPy twin of :class:`lightning_jd.linalg._scaling.UnitDiagonal`."""

    C: Array
    d: Array
    inverse: Array


def unit_diagonal(G: Array, reg: float) -> UnitDiagonalArray:
    """The NumPy twin of :func:`lightning_jd.linalg._scaling.unit_diagonal`."""
    m = len(G)
    diagonal = np.maximum(G.diagonal(), 0)
    largest = diagonal.max()
    if largest == 0:
        return UnitDiagonalArray(np.eye(m), diagonal, diagonal)
    if not MODERATE[0] < largest < MODERATE[1]:
        G, diagonal = G / largest, diagonal / largest
    trace = diagonal.sum()
    d = np.sqrt(diagonal / trace + reg)
    inverse = 1 / d if reg > 0 else np.divide(1, d, out=np.zeros(m), where=d > 0)
    C = G * (inverse * (0.5 / trace))
    C *= inverse[:, None]
    C = C + C.T
    if reg == 0:  # only a small diagonal leaves entries that no Gramian can have
        np.clip(C, -1, 1, out=C)
    C.flat[:: m + 1] = 1
    return UnitDiagonalArray(C, d, inverse)


def solve(C: Array, Q: Array, noise: float, *, well_conditioned: bool) -> Array:
    """Solve all rows of ``Q`` (k, m); the eigenvalues of ``C`` are known up to ``noise``."""
    if not well_conditioned and not is_positive_definite(C, _stages.WELL_CONDITIONED):
        return _stages.solve(torch.from_numpy(C), torch.from_numpy(Q), noise).numpy()
    positive = _guess_positive(C, Q)
    try:
        Z, W = _pivot(C, Q, positive)
        if np.abs(np.minimum(Z, W)).max() <= _stages.TOLERANCE:
            return Z
    except np.linalg.LinAlgError:
        Z = np.zeros_like(Q)
    return _stages.finish(*map(torch.from_numpy, (C, Q, Z, positive))).numpy()


def is_positive_definite(C: Array, least: float) -> bool:
    """Whether every eigenvalue of ``C`` is above ``least``."""
    shifted = C.copy()
    shifted.flat[:: len(C) + 1] -= least
    try:
        np.linalg.cholesky(shifted)
    except np.linalg.LinAlgError:
        return False
    return True


def _guess_positive(C: Array, Q: Array) -> Mask:
    """The NumPy twin of :func:`lightning_jd.linalg._guess.guess_positive`."""
    m = len(C)
    tiny = m <= MASKED
    rho = TINY_RHO if tiny else _guess.RHO
    N = C.copy()
    N.flat[:: m + 1] += rho
    N = cast(Array, np.linalg.inv(N))
    constant: NDArray[Any] = Q @ N
    np.negative(constant, out=constant)
    N *= 2 * rho
    N.flat[:: m + 1] -= 1
    if tiny:
        return _iterate(constant.copy(), N, constant, TINY_ITERATIONS) > 0
    step, constant = N.astype(np.float32), constant.astype(np.float32)
    x = _iterate(constant.copy(), step, constant, FIRST)
    positive: Mask = x > 0
    for _ in range(FIRST, LAST, BURST):
        before, positive = positive, _iterate(x, step, constant, BURST) > 0
        if np.count_nonzero((before != positive).any(axis=1)) <= _guess.SETTLED * len(Q):
            break
    return positive


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
    """Block principal pivoting without a guard against cycles; unfinished rows stay infeasible."""
    systems: _Masked | _Gathered = _Masked(C, Q) if len(C) <= MASKED else _Gathered(C, Q, positive)
    Z = z = systems.solve(ALL, positive)
    W = w = z @ C + Q
    rows: NDArray[np.intp] | None = None
    for _ in range(ROUNDS):
        wrong = np.where(positive, z, w) < -_pivoting.WRONG_SIGN * (1 + z.max())
        left = wrong.any(axis=1)
        if not left.any():
            break
        rows = np.flatnonzero(left) if rows is None else rows[left]
        positive = (positive ^ wrong)[left]
        z = systems.solve(rows, positive)
        w = z @ C + Q[rows]
        Z[rows], W[rows] = z, w
    return np.maximum(Z, 0, out=Z), W


class _Masked:
    """``C_PP z_P = -q_P`` as systems of full size, with rows of the identity outside P."""

    def __init__(self, C: Array, Q: Array) -> None:
        # Both signs are turned, instead of that of every right-hand side.
        self.C, self.identity, self.Q = -C, -np.eye(len(C)), Q

    def solve(self, rows: Rows, positive: Mask) -> Array:
        A = np.where(positive[:, :, None] & positive[:, None, :], self.C, self.identity)
        b = self.Q[rows] * positive
        return cast(Array, np.linalg.solve(A, b[:, :, None])[:, :, 0])


class _Gathered:
    """The NumPy twin of :class:`lightning_jd.linalg._pivoting.PrincipalSystems`."""

    def __init__(self, C: Array, Q: Array, positive: Mask) -> None:
        m = len(C)
        self.S = np.count_nonzero(positive, axis=0) > 0.5 * len(Q)
        order = np.argsort(~self.S, kind="stable")
        k = np.count_nonzero(self.S)
        C, Q = C[order[:, None], order], Q[:, order]
        T = np.linalg.inv(C[:k, :k])
        TB = T @ C[:k, k:]
        M, R = np.empty_like(C), Q.copy()
        M[:k, :k], M[:k, k:], M[k:, :k] = T, -TB, TB.T
        M[k:, k:] = C[k:, k:] - C[k:, :k] @ TB
        R[:, :k] = Q[:, :k] @ -T
        R[:, k:] -= Q[:, :k] @ TB
        # One more row and column of zeros: the index m fills up systems that are short.
        self.matrix, self.sides = np.zeros((m + 1, m + 1)), np.zeros((len(Q), m + 1))
        self.matrix[order[:, None], order] = M
        self.sides[:, order] = R
        self.transposed = self.matrix[:m, :m].T

    def solve(self, rows: Rows, positive: Mask) -> Array:
        m = len(self.S)
        differs = positive ^ self.S
        sizes = np.count_nonzero(differs, axis=1)
        sides = self.sides[rows]
        exchanged = np.zeros_like(sides)
        # Sorted by size and cut into a few batches, so that little is padding.
        batches = 1 + len(sizes) * int(sizes.max()) // 256
        for batch in np.array_split(np.argsort(sizes, kind="stable"), min(batches, len(sizes))):
            size = int(sizes[batch[-1]])
            if size == 0:
                continue
            full = np.arange(size) < sizes[batch, None]
            D = np.full(full.shape, m)
            D[full] = np.nonzero(differs[batch])[1]
            A = self.matrix.take((D * (m + 1))[:, :, None] + D[:, None, :])
            A.reshape(len(A), -1)[:, :: size + 1] += ~full
            b = sides[batch[:, None], D]
            exchanged[batch[:, None], D] = -np.linalg.solve(A, b[:, :, None])[:, :, 0]
        exchanged = exchanged[:, :m]
        kept = exchanged @ self.transposed
        kept += sides[:, :m]
        z: Array = np.where(self.S, kept, exchanged) * positive
        return z

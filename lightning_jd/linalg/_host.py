"""On a CPU: the same algorithm in NumPy, where a call costs a third of torch's.

That decides for few objectives; for many, its LAPACK solves small systems no slower. Only the fast
stages live here, for a well-conditioned matrix. Rows that they leave go to the robust stages of
:mod:`lightning_jd.linalg._stages`.
"""

from typing import Any, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_jd.linalg import _guess, _pivoting, _stages
from lightning_jd.linalg._arrays import Array, Mask, is_positive_definite
from lightning_jd.linalg._single import exchange

Rows: TypeAlias = NDArray[np.intp] | slice

ALL = slice(None)
MASKED = 16  # up to this m, systems of full size with rows of the identity beat gathering
ROUNDS = 5
FEW = 6  # so many rows that a round left are finished one by one
UNCHECKED = 48  # up to this m, a fixed number of iterations guesses well enough
CAREFUL = 36  # iterations of a careful guess
FIRST, BURST, LAST = 8, 4, 32  # of the guess above; checks are cheaper than on an accelerator


def solve(C: Array, Q: Array, noise: float, *, well_conditioned: bool) -> Array:
    """Solve all rows of ``Q`` (k, m); the eigenvalues of ``C`` are known up to ``noise``."""
    if not well_conditioned and not is_positive_definite(C, _stages.WELL_CONDITIONED):
        return _stages.solve(torch.from_numpy(C), torch.from_numpy(Q), noise).numpy()
    positive, Z = np.zeros_like(Q, dtype=np.bool_), np.zeros_like(Q)
    try:
        for careful in (False, True):
            positive = _guess_positive(C, Q, careful=careful)
            found = _pivot(C, Q, positive, insist=careful)
            if found is not None:
                Z, W = found
                if np.abs(np.minimum(Z, W)).max() <= _stages.TOLERANCE:
                    return Z
                break
    except np.linalg.LinAlgError:
        pass  # the robust stages need no inverse
    return _stages.finish(*map(torch.from_numpy, (C, Q, Z, positive))).numpy()


def _guess_positive(C: Array, Q: Array, *, careful: bool) -> Mask:
    """The NumPy twin of :func:`lightning_jd.linalg._guess.guess_positive`.

    A careful guess takes longer and is right where most eigenvalues are near the regularisation.
    """
    m = len(C)
    rho = 0.05 if careful else 0.8 if m <= MASKED else 0.6 if m <= UNCHECKED else _guess.RHO
    N = C.copy()
    N.flat[:: m + 1] += rho
    N = cast(Array, np.linalg.inv(N))
    constant: NDArray[Any] = Q @ N
    np.negative(constant, out=constant)
    N *= 2 * rho
    N.flat[:: m + 1] -= 1
    step: NDArray[Any] = N
    if m > MASKED:
        step, constant = step.astype(np.float32), constant.astype(np.float32)
    x = constant.copy()
    if careful or m <= UNCHECKED:
        return _iterate(x, step, constant, CAREFUL if careful else 6 + m // 4) > 0
    positive: Mask = _iterate(x, step, constant, FIRST) > 0
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


def _pivot(C: Array, Q: Array, positive: Mask, *, insist: bool) -> tuple[Array, Array] | None:
    """``Z`` and ``W = ZC + Q`` by block principal pivoting from the sets ``positive``.

    There is no guard against cycles: rows that do not finish in a few rounds stay infeasible.
    Unless it is to ``insist``, it returns None where half of the sets turn out to be wrong.
    """
    if len(C) <= MASKED:
        return _rounds(_Masked(C, Q), C, Q, positive, insist)
    majority = np.count_nonzero(positive, axis=0) > 0.5 * len(Q)
    order = np.concatenate([majority.nonzero()[0], (~majority).nonzero()[0]])
    shared = int(np.count_nonzero(majority))
    C, Q = C.take(order, axis=0).take(order, axis=1), Q.take(order, axis=1)
    found = _rounds(_Gathered(C, Q, shared), C, Q, positive.take(order, axis=1), insist)
    if found is None:
        return None
    back = np.argsort(order)
    return found[0].take(back, axis=1), found[1].take(back, axis=1)


def _rounds(
    systems: "_Masked | _Gathered", C: Array, Q: Array, positive: Mask, insist: bool
) -> tuple[Array, Array] | None:
    Z = z = systems.solve(ALL, positive)
    W = w = z @ C + Q
    rows: NDArray[np.intp] | None = None
    for _ in range(ROUNDS):
        wrong = np.where(positive, z, w) < -_pivoting.WRONG_SIGN * (1 + z.max())
        left = wrong.any(axis=1)
        wrong_rows = np.count_nonzero(left)
        if wrong_rows == 0:
            break
        if rows is None and not insist and 2 * wrong_rows > len(left):
            return None
        rows = left.nonzero()[0] if rows is None else rows[left]
        positive = (positive ^ wrong)[left]
        if len(rows) <= FEW:
            for row, guess in zip(rows, positive, strict=True):
                found = exchange(C, Q[row], guess)
                if found is not None:
                    Z[row], W[row] = found
            break
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
    """The NumPy twin of :class:`lightning_jd.linalg._pivoting.PrincipalSystems`.

    The set S that all rows share consists of the first ``shared`` objectives.
    """

    def __init__(self, C: Array, Q: Array, shared: int) -> None:
        m, k = len(C), shared
        self.S = np.arange(m) < k
        # One more row and column of zeros: the index m fills up systems that are short.
        self.matrix, self.sides = np.zeros((m + 1, m + 1)), np.zeros((len(Q), m + 1))
        M, R = self.matrix[:m, :m], self.sides[:, :m]
        M[:], R[:] = C, Q
        if k > 0:
            B = C[:k, k:]
            T = np.linalg.inv(C[:k, :k])
            TB = T @ B
            M[:k, :k], M[:k, k:], M[k:, :k] = T, -TB, TB.T
            M[k:, k:] -= B.T @ TB
            R[:, :k] = Q[:, :k] @ -T
            R[:, k:] -= Q[:, :k] @ TB
        self.transposed = M.T

    def solve(self, rows: Rows, positive: Mask) -> Array:
        m = len(self.S)
        differs = positive ^ self.S
        sizes = np.count_nonzero(differs, axis=1)
        sides = self.sides[rows]
        exchanged = np.zeros_like(sides)
        # Sorted by size and cut into a few batches, so that little is padding.
        ranking = np.argsort(sizes)
        stride = max(1, 1000 // max(1, int(sizes[ranking[-1]])))
        for start in range(0, len(sizes), stride):
            batch = ranking[start : start + stride]
            size = int(sizes[batch[-1]])
            if size == 0:
                continue
            full = np.arange(size) < sizes[batch, None]
            D = np.full(full.shape, m)
            D[full] = differs[batch].nonzero()[1]
            A = self.matrix.take((D * (m + 1))[:, :, None] + D[:, None, :])
            A.reshape(len(A), -1)[:, :: size + 1] += ~full
            b = sides[batch[:, None], D]
            exchanged[batch[:, None], D] = -np.linalg.solve(A, b[:, :, None])[:, :, 0]
        exchanged = exchanged[:, :m]
        kept = exchanged @ self.transposed
        kept += sides[:, :m]
        return cast(Array, np.where(self.S, kept, exchanged) * positive)

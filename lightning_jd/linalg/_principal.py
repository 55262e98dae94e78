"""One linear system for each set of positive entries: NumPy finds the blocks, LAPACK solves them.

The NumPy twin of :class:`lightning_jd.linalg._pivoting.PrincipalSystems`. To call LAPACK for each
row takes less time than to fill batches.
"""

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lightning_jd.linalg._arrays import Array, Mask, product
from lightning_jd.linalg._lapack import inverse, routines

Rows: TypeAlias = NDArray[np.intp] | slice

# The time of a system of n unknowns is nearly CALLS + n² + n m / ROWS: up to some hundred unknowns
# LAPACK is far from its cubic regime, and whole rows of m entries are read to find the block.
CALLS, ROWS = 800, 13
# Beyond this many unknowns OpenBLAS wakes its threads, and a system takes at least thrice as long.
LARGE, WAKING = 120, 3
UNSYMMETRIC = 1.4  # LU instead of Cholesky
PIVOT_CALLS, PIVOT = 25_000, 2.3  # a pivot on m objectives takes PIVOT_CALLS + PIVOT m²


class Shared(NamedTuple):
    """The set S that all rows share.

    Attributes:
        inside: Its mask (m,), None if it is empty.
        symmetric: Whether the systems of its rows are.
        work: How long they take, where an unknown, squared, is the unit.
    """

    inside: Mask | None
    symmetric: bool
    work: float


def shared_set(positive: Mask) -> Shared:
    """The set that leaves least work: none, all, or what most rows of ``positive`` (k, m) agree on.

    A row solves a system of the size of the difference between its own set and the shared one. It
    is symmetric if one of them contains the other.
    """
    k, m = positive.shape

    def work(sizes: NDArray[np.intp]) -> float:
        times = np.where(sizes > LARGE, WAKING, 1)
        return float(CALLS * k + np.sum(times * sizes * (sizes + m // ROWS)))

    sizes = np.count_nonzero(positive, axis=1)
    none = Shared(None, True, work(sizes))
    pivot = PIVOT_CALLS + PIVOT * m**2
    if none.work <= pivot + CALLS * k:
        return none
    all_ = Shared(np.ones(m, dtype=bool), True, pivot + work(m - sizes))
    most = np.count_nonzero(positive, axis=0) > 0.5 * k
    sizes = np.count_nonzero(positive ^ most, axis=1)
    majority = Shared(most, False, pivot + UNSYMMETRIC * work(sizes))
    return min(none, all_, majority, key=lambda shared: shared.work)


class PrincipalSystems:
    """Solves ``C_PP z_P = -q_P``, with ``z = 0`` outside P, for one set P per row of ``Q`` (k, m).

    Args:
        C: Symmetric and positive definite, shape (m, m).
        Q: Shape (k, m).
        positive: The sets that are asked for first; later ones may differ.
    """

    def __init__(self, C: Array, Q: Array, positive: Mask) -> None:
        known = routines()
        self._shared, symmetric, _ = shared_set(positive)
        self._solve = known.dposv if symmetric else known.dgesv
        self._options = {"overwrite_a": 1, "overwrite_b": 1}
        if symmetric:
            self._options["lower"] = 1  # a third faster from 50 unknowns on
        self._transposed, self._sides = C, Q
        if self._shared is not None:
            self._pivot_on(self._shared, C, Q)

    def _pivot_on(self, inside: Mask, C: Array, Q: Array) -> None:
        """Exchange z and w on S: ``(z_S, w_N) = M (w_S, z_N) + r``, with r one of the sides."""
        k = np.count_nonzero(inside)
        order = np.argsort(~inside, kind="stable")
        S, back = order[:k], np.argsort(order)
        M = _block(C, order, order)
        T, B = inverse(np.ascontiguousarray(M[:k, :k])), M[:k, k:].copy()
        TB = product(T, B)
        M[k:, k:] -= product(np.ascontiguousarray(B.T), TB)
        M[:k, :k], M[:k, k:], M[k:, :k] = T, TB, -TB.T
        self._transposed = _block(M, back, back)
        if Q is C:  # UPGrad: the rows of C are solved by those of the identity
            self._sides = self._transposed.copy()
            self._sides[S] = 0
            self._sides[S, S] = -1
        else:
            R = Q.take(order, 1)
            R[:, k:] -= R[:, :k] @ TB
            R[:, :k] = R[:, :k] @ -T
            self._sides = R.take(back, 1)

    def solve(self, rows: Rows, positive: Mask) -> Array:
        """``z`` (len(rows), m) for the sets ``positive`` of these rows of ``Q``.

        Raises:
            LinAlgError: If a system is singular.
        """
        differs = positive if self._shared is None else positive ^ self._shared
        sides = self._sides[rows]
        row, column = differs.nonzero()
        places = row * positive.shape[1] + column
        solutions = sides.take(places)
        M, solve, options = self._transposed, self._solve, self._options
        start = 0
        for stop in np.cumsum(np.count_nonzero(differs, axis=1)).tolist():
            if stop > start:
                D = column[start:stop]
                # LAPACK works in place on columns, which are the rows of what is transposed.
                found = solve(M.take(D, 0).take(D, 1).T, solutions[start:stop], **options)
                if found[-1]:
                    raise np.linalg.LinAlgError
                solutions[start:stop] = found[-2]
            start = stop
        Z = np.zeros_like(sides)
        Z.put(places, np.negative(solutions, out=solutions))
        if self._shared is None:
            return Z
        Z = np.where(self._shared, sides + product(Z, M), Z)
        Z *= positive
        return Z


def _block(C: Array, rows: NDArray[np.intp], columns: NDArray[np.intp]) -> Array:
    block: Array = C.take(rows, 0).take(columns, 1)
    return block

"""One linear system for each set of positive entries: NumPy finds the blocks, LAPACK solves them.

The NumPy twin of :class:`lightning_jd.linalg._pivoting.PrincipalSystems`. To call LAPACK for each
row takes less time than to fill batches.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from lightning_jd.linalg._arrays import Array, Mask
from lightning_jd.linalg._lapack import routines

Rows: TypeAlias = NDArray[np.intp] | slice

# The time of a system of n unknowns is nearly CALLS + n² + n m / ROWS: up to some hundred unknowns
# LAPACK is far from its cubic regime, and whole rows of m entries are read to find the block.
CALLS, ROWS = 800, 13


def work(positive: Mask) -> float:
    """How long the systems of these sets (k, m) take; an unknown, squared, is the unit."""
    k, m = positive.shape
    sizes = np.count_nonzero(positive, axis=1)
    return float(CALLS * k + np.sum(sizes * (sizes + m // ROWS)))


class PrincipalSystems:
    """Solves ``C_PP z_P = -q_P``, with ``z = 0`` outside P, for one set P per row of ``Q`` (k, m).

    Args:
        C: Symmetric and positive definite, shape (m, m).
        Q: Shape (k, m).
    """

    def __init__(self, C: Array, Q: Array) -> None:
        self._C, self._Q = C, Q

    def solve(self, rows: Rows, positive: Mask) -> Array:
        """``z`` (len(rows), m) for the sets ``positive`` of these rows of ``Q``.

        Raises:
            LinAlgError: If a system is singular.
        """
        sides = self._Q[rows]
        row, column = positive.nonzero()
        places = row * positive.shape[1] + column
        solutions = sides.take(places)
        C, solve = self._C, routines().dposv
        start = 0
        for stop in np.cumsum(np.count_nonzero(positive, axis=1)).tolist():
            if stop > start:
                P = column[start:stop]
                # LAPACK works in place on columns, which for a symmetric matrix are the rows. Of
                # the lower triangle it is a third faster from 50 unknowns on.
                _, solutions[start:stop], failed = solve(
                    C.take(P, 0).take(P, 1).T, solutions[start:stop], 1, 1, 1
                )
                if failed:
                    raise np.linalg.LinAlgError
            start = stop
        Z = np.zeros_like(sides)
        Z.put(places, np.negative(solutions, out=solutions))
        return Z

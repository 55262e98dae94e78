"""Tiny problems: a compiled solver, row by row, where the number of NumPy calls is the cost.

With ``C = LLᵀ``, the program ``min ½ zᵀCz + qᵀz, z >= 0`` is the least-squares problem
``min |Lᵀz + L⁻¹q|, z >= 0`` of Lawson and Hanson.
"""

import numpy as np

from lightning_jd.linalg._arrays import Array
from lightning_jd.linalg._lapack import routines

TINY = 8  # up to this m it beats all rows at once


def solve_rows(C: Array, Q: Array) -> tuple[Array, Array]:
    """``Z >= 0`` and ``W = ZC + Q`` for the rows of ``Q`` (k, m); ``C`` is positive definite.

    Raises:
        LinAlgError: If it is not.
        RuntimeError: If a row takes too many iterations.
    """
    known = routines()
    L, failed = known.dpotrf(C, lower=1)
    if failed:
        raise np.linalg.LinAlgError
    # ``dtrtrs`` wakes all threads of OpenBLAS even for two unknowns: 25 ms on busy cores
    inverse, _ = known.dtrtri(L, lower=1)
    sides = -(inverse @ Q.T)
    transposed = L.T
    Z = np.array([known.nnls(transposed, side)[0] for side in sides.T])
    return Z, Z @ C + Q

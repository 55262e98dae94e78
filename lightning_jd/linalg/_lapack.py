"""LAPACK and its kin by way of SciPy: a fifth of the overhead of NumPy's own functions.

Imported at the first call: SciPy takes long.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple


class Routines(NamedTuple):
    """The compiled functions that tiny problems are made of."""

    dposv: Callable[..., Any]
    dpotrf: Callable[..., Any]
    dtrtri: Callable[..., Any]
    nnls: Callable[..., Any]


@cache
def routines() -> Routines:
    """All of them."""
    from scipy.linalg.lapack import dposv, dpotrf, dtrtri  # type: ignore[import-untyped]  # no stubs
    from scipy.optimize import nnls  # type: ignore[import-untyped]  # no stubs

    return Routines(dposv, dpotrf, dtrtri, nnls)

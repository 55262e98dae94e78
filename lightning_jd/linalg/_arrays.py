"""The unit-diagonal scale in NumPy: what everything that runs on a CPU starts from."""

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lightning_jd.linalg._scaling import FLOOR, RelativeTo

Array: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]

MODERATE = (1e-290, 1e290)  # no sum or square root of these overflows or loses digits


class UnitDiagonalArray(NamedTuple):
    """The NumPy twin of :class:`lightning_jd.linalg._scaling.UnitDiagonal`."""

    C: Array
    d: Array
    inverse: Array


def unit_diagonal(
    G: Array, reg: float, underflow: float, relative_to: RelativeTo = "trace"
) -> UnitDiagonalArray:
    """The NumPy twin of :func:`lightning_jd.linalg._scaling.unit_diagonal`."""
    m = len(G)
    diagonal = G.diagonal()
    if np.minimum.reduce(diagonal) <= underflow:
        diagonal = np.where(diagonal > underflow, diagonal, 0)
    largest = np.maximum.reduce(diagonal)
    if largest == 0:
        return UnitDiagonalArray(np.eye(m), diagonal, diagonal)
    if not MODERATE[0] < largest < MODERATE[1]:
        G, diagonal = G / largest, diagonal / largest
    trace = np.add.reduce(diagonal)
    by_trace = relative_to == "trace" or reg == 0
    shares = diagonal / trace
    if by_trace:
        d = np.sqrt(shares + reg)
    else:
        d = np.sqrt(np.maximum(shares + reg * _block_sums(shares, relative_to), FLOOR))
        d *= diagonal > 0
    inverse = 1 / d if by_trace and reg > 0 else np.divide(1, d, out=np.zeros(m), where=d > 0)
    C = G * (inverse * (0.5 / trace))
    C *= inverse[:, None]
    C = C + C.T
    if reg < 1e-6 or not by_trace:  # only a small diagonal leaves entries that no Gramian can have
        np.clip(C, -1, 1, out=C)
    C.flat[:: m + 1] = 1
    return UnitDiagonalArray(C, d, inverse)


def _block_sums(shares: Array, relative_to: RelativeTo) -> Array:
    """The sum of the entries of the block of each entry."""
    if relative_to == "row":
        return shares
    blocks = np.asarray(relative_to)
    sums: Array = np.bincount(blocks, weights=shares)[blocks]
    return sums


def is_positive_definite(C: Array, least: float) -> bool:
    """Whether every eigenvalue of ``C`` is above ``least``."""
    shifted = C.copy()
    shifted.flat[:: len(C) + 1] -= least
    try:
        np.linalg.cholesky(shifted)
    except np.linalg.LinAlgError:
        return False
    return True

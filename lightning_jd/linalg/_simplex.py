"""The least-norm element of the convex hull of the rows (MGDA), as one complementarity program."""

import numpy as np
from torch import Tensor

from lightning_jd.linalg._arrays import Array, Mask
from lightning_jd.linalg._checks import check_square
from lightning_jd.linalg._lapack import routines
from lightning_jd.linalg._scaling import noise_level, underflow_level
from lightning_jd.linalg._single import solve_single
from lightning_jd.linalg._threads import by_one_thread
from lightning_jd.linalg._transfer import to_array, to_tensor

ROUNDING = 1e-12  # relative to the terms that cancel


def min_norm_weights(gramian: Tensor, cap: float = 1.0) -> Tensor:
    r"""Weights of the shortest convex combination of the rows of :math:`J`, as in MGDA.

    .. math::
        v = \operatorname*{arg\,min} \; v^\top G v, \qquad 0 \preceq v \preceq c, \;
        \sum_i v_i = 1, \qquad G = J J^\top .

    Exact: for any :math:`s > 0` the minimiser of :math:`y^\top G y + s (\sum_i y_i - 1)^2` over
    :math:`y \succeq 0` is a positive multiple of :math:`v`, a single non-negative least squares.
    With a bound :math:`c < 1` it is Wolfe's algorithm for the shortest vector of a polytope.
    If some rows are zero (or underflow when squared), they share the weight.
    The Gramian is copied to the host once.

    Args:
        gramian: :math:`G`, shape ``(m, m)``.
        cap: The bound :math:`c`; from 1 on there is none, and up to 1/m all weights are 1/m.

    Returns:
        The weights :math:`v`, shape ``(m,)``, in the dtype and on the device of ``gramian``.

    Raises:
        ShapeError: If ``gramian`` is not square.
        NonFiniteError: If an entry is NaN or infinite.

    Example:
        >>> import torch
        >>> min_norm_weights(torch.tensor([[1.0, 0.0], [0.0, 3.0]]))
        tensor([0.7500, 0.2500])
    """
    check_square("gramian", gramian)
    G = to_array("gramian", gramian)
    if cap < 1:
        v = capped_min_norm(G, cap)
    else:
        v = min_norm(G, noise_level(gramian.dtype, len(G)), underflow_level(gramian.dtype))
    return to_tensor(v, gramian, bounded=True)


@by_one_thread
def min_norm(G: Array, noise: float, underflow: float) -> Array:
    """:func:`min_norm_weights` of an array."""
    diagonal = G.diagonal()
    zero = diagonal <= underflow
    if zero.any():
        share: Array = zero / np.count_nonzero(zero)
        return share
    scale = diagonal.min()
    squares = diagonal / scale
    s = (
        len(G) / (1 / squares).sum()
    )  # the harmonic mean: of the size of the short rows, which count
    e = 1 / np.sqrt(squares + s)
    C = (G / scale + G.T / scale) / 2 + s
    C *= e
    C *= e[:, None]
    np.clip(C, -1, 1, out=C)
    C.flat[:: len(C) + 1] = 1
    y = solve_single(C, -s * e, noise) * e
    v: Array = y / y.sum()
    return v


@by_one_thread
def capped_min_norm(G: Array, cap: float) -> Array:
    """The same with ``v <= cap < 1``, among the combinations of as few vertices as can be.

    A vertex of the polytope gives ``cap`` to as many rows as that allows, and the rest to one more.
    """
    m = len(G)
    if cap * m <= 1:
        return np.full(m, 1 / m)
    full = int(1 / cap + ROUNDING)
    shares = np.zeros(m)
    shares[:full] = cap
    shares[full : full + 1] = max(0.0, 1 - full * cap)

    def vertex(slopes: Array) -> Array:
        found = np.empty(m)
        found[slopes.argsort(kind="stable")] = shares
        return found

    norms = np.sqrt(G.diagonal().clip(0))
    corral = vertex(norms)[None]  # the shortest rows first: their digits count
    coefficients = np.ones(1)
    for _ in range(100 * m):
        v: Array = coefficients @ corral
        slopes = G @ v
        best = vertex(slopes)
        size = v @ norms
        if slopes @ (v - best) <= ROUNDING * size * (size + best @ norms):
            break
        corral, coefficients = np.vstack([corral, best]), np.append(coefficients, 0)
        if (found := _within(corral @ G @ corral.T, coefficients)) is None:
            break  # up to rounding, the vertex depends on the others
        coefficients, kept = found
        coefficients, corral = coefficients[kept], corral[kept]
    return v


def _within(H: Array, coefficients: Array) -> tuple[Array, Mask] | None:
    """The shortest convex combination near the one of their affine hull, and who is part of it."""
    kept = np.ones(len(H), dtype=bool)
    while True:
        P = kept.nonzero()[0]
        squares = H.diagonal()[P].clip(0)
        if squares.max() == 0:  # none is shorter
            return coefficients, kept
        s = max(squares.min(), ROUNDING**2 * squares.max())  # the short ones count, as above
        e = 1 / np.sqrt(squares + s)
        C = (H[np.ix_(P, P)] + s) * e * e[:, None]
        _, solution, failed = routines().dposv(C, e)
        wanted = np.zeros(len(H))
        wanted[P] = solution * e
        if failed or (kept.all() and wanted[-1] <= 0):
            return None
        wanted /= wanted.sum()
        if (wanted[P] > 0).all():
            return wanted, kept
        falling = kept & (wanted <= 0)
        steps = coefficients[falling] / (coefficients[falling] - wanted[falling])
        step = steps.min()
        coefficients = coefficients + step * (wanted - coefficients)
        coefficients[falling.nonzero()[0][steps <= step]] = 0
        kept &= coefficients > 0

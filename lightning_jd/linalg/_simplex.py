"""The least-norm element of the convex hull of the rows (MGDA), as one complementarity program."""

import numpy as np
from torch import Tensor

from lightning_jd.linalg._arrays import Array
from lightning_jd.linalg._checks import check_square
from lightning_jd.linalg._scaling import noise_level, underflow_level
from lightning_jd.linalg._single import solve_single
from lightning_jd.linalg._threads import by_one_thread
from lightning_jd.linalg._transfer import to_array, to_tensor


def min_norm_weights(gramian: Tensor) -> Tensor:
    r"""Weights of the shortest convex combination of the rows of :math:`J`, as in MGDA.

    .. math::
        v = \operatorname*{arg\,min} \; v^\top G v, \qquad v \succeq 0, \; \sum_i v_i = 1,
        \qquad G = J J^\top .

    Exact: for any :math:`s > 0` the minimiser of :math:`y^\top G y + s (\sum_i y_i - 1)^2` over
    :math:`y \succeq 0` is a positive multiple of :math:`v`, a single non-negative least squares.
    If some rows are zero (or underflow when squared), they share the weight.
    The Gramian is copied to the host once.

    Args:
        gramian: :math:`G`, shape ``(m, m)``.

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

"""The shortest vector in an intersection of half-spaces, from the Gramian of their normals."""

import numpy as np
from torch import Tensor

from lightning_jd.errors import ShapeError
from lightning_jd.linalg._arrays import Array, unit_diagonal
from lightning_jd.linalg._checks import check_square
from lightning_jd.linalg._scaling import noise_level, underflow_level
from lightning_jd.linalg._single import solve_single
from lightning_jd.linalg._threads import by_one_thread
from lightning_jd.linalg._transfer import to_array, to_tensor, together


def halfspace_weights(gramian: Tensor, bounds: Tensor) -> Tensor:
    r"""Weights of the shortest :math:`d` with :math:`J d \succeq b`, which must exist.

    .. math::
        d = J^\top v, \qquad v \succeq 0, \quad G v - b \succeq 0 \text{ complementary}, \qquad
        G = J J^\top .

    The Gramian is copied to the host once. Rows without gradient get the weight 0.

    Args:
        gramian: :math:`G`, shape ``(m, m)``.
        bounds: :math:`b`, shape ``(m,)``.

    Returns:
        The weights :math:`v`, shape ``(m,)``, in the dtype and on the device of ``gramian``.

    Raises:
        ShapeError: If ``gramian`` is not square or ``bounds`` does not fit it.
        NonFiniteError: If an entry is NaN or infinite.

    Example:
        >>> import torch
        >>> halfspace_weights(torch.tensor([[4.0, 0.0], [0.0, 1.0]]), torch.tensor([2.0, -1.0]))
        tensor([0.5000, 0.0000])
    """
    check_square("gramian", gramian)
    if bounds.shape != gramian.shape[:1]:
        raise ShapeError(
            f"`bounds` must have one entry per row ({len(gramian)}), got shape "
            f"{tuple(bounds.shape)}."
        )
    on_host, limits = together(gramian, bounds)
    G, b = to_array("gramian", on_host), to_array("bounds", limits)
    dtype = gramian.dtype
    v = _solve(G, b, noise_level(dtype, len(G)), underflow_level(dtype))
    return to_tensor(v, gramian, bounded=False)


@by_one_thread
def _solve(G: Array, b: Array, noise: float, underflow: float) -> Array:
    C, d, _ = unit_diagonal(G, 0.0, underflow)
    lengths = d * np.sqrt(G.diagonal().clip(0).sum())  # the norms of the rows
    q = np.divide(-b, lengths, out=np.zeros(len(G)), where=d > 0)
    v: Array = np.divide(solve_single(C, q, noise), lengths, out=np.zeros(len(G)), where=d > 0)
    return v

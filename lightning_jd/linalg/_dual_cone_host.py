"""The dual cone on the host: from a Gramian anywhere to weights, with one copy and few calls.

At m = 8 the calls are the cost, so that the smallest cases are written out.
"""

import numpy as np
from torch import Tensor

from lightning_jd.linalg import _arrays, _host, _stages
from lightning_jd.linalg._arrays import Array
from lightning_jd.linalg._scaling import RelativeTo, noise_level, underflow_level
from lightning_jd.linalg._single import solve_single
from lightning_jd.linalg._threads import by_one_thread
from lightning_jd.linalg._transfer import to_array, to_tensor, together


@by_one_thread
def project(
    gramian: Tensor,
    targets: Tensor,
    reg: float,
    tolerance: float,
    relative_to: RelativeTo = "trace",
) -> tuple[Tensor, float]:
    """:func:`lightning_jd.linalg.dual_cone_weights`, and the residual."""
    on_host, targets = together(gramian, targets)
    G, U = to_array("gramian", on_host), to_array("targets", targets)
    C, d, inverse = _arrays.unit_diagonal(G, reg, underflow_level(gramian.dtype), relative_to)
    noise, certain = noise_level(gramian.dtype, len(G)), is_certain(reg)
    Y = U * d
    if U.ndim == 1:
        q = Y @ C
        Z = solve_single(C, q, noise, unique=certain or None)
        residual = _residual_of_one(C, q, Z, float(np.abs(Y).max()))
    else:
        size = np.abs(Y).max(axis=1, keepdims=True)
        size[size == 0] = 1
        Z, residual = _host.solve(
            C, (Y / size) @ C, noise, well_conditioned=certain, tolerance=tolerance
        )
        Z = Z * size
    return to_tensor(U + inverse * Z, gramian, bounded=certain), residual


@by_one_thread
def upgrad(
    gramian: Tensor,
    preference: Tensor | None,
    reg: float,
    tolerance: float,
    relative_to: RelativeTo = "trace",
) -> tuple[Tensor, float]:
    """:func:`lightning_jd.linalg.upgrad_weights`, and the residual."""
    m = gramian.shape[0]
    on_host = gramian
    if preference is not None:
        on_host, preference = together(gramian, preference)
    G = to_array("gramian", on_host)
    p = 1 / m if preference is None else to_array("preference", preference)
    if m == 1:
        return to_tensor(p + np.zeros(1), gramian, bounded=False), 0.0
    C, d, inverse = _arrays.unit_diagonal(G, reg, underflow_level(gramian.dtype), relative_to)
    certain, residual = is_certain(reg), 0.0
    if C.min() >= 0:  # nobody conflicts
        weights = p + np.zeros(m)
    elif m == 2:  # z₁₂ = z₂₁ = -c: the pair in closed form
        weights = p - inverse * (C[0, 1] * (p * d)[::-1])
    else:
        noise = noise_level(gramian.dtype, m)
        Z, residual = _host.solve(C, C, noise, well_conditioned=certain, tolerance=tolerance)
        weights = p + inverse * ((p * d) @ Z)
    return to_tensor(weights, gramian, bounded=certain), residual


def is_certain(reg: float) -> bool:
    """Whether ``reg`` alone makes C well-conditioned: no eigenvalue is below ``reg / (1 + reg)``.

    That holds for every scale that is at least the square of its row.
    """
    return reg >= _stages.WELL_CONDITIONED * (1 + reg)


def _residual_of_one(C: Array, q: Array, z: Array, scale: float) -> float:
    if scale == 0:
        return 0.0
    return float(np.abs(np.minimum(z, C @ z + q)).max() / (scale + z.max()))

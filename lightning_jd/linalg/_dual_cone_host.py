"""The dual cone on the host: from a Gramian anywhere to weights, with one copy and few calls.

At m = 8 the calls are the cost, so that the smallest cases are written out.
"""

import math

import numpy as np
import torch
from torch import Tensor

from lightning_jd.linalg import _arrays, _host, _stages
from lightning_jd.linalg._arrays import Array
from lightning_jd.linalg._checks import check_finite
from lightning_jd.linalg._scaling import noise_level, to_finite, underflow_level
from lightning_jd.linalg._single import solve_single


def project(gramian: Tensor, targets: Tensor, reg: float, tolerance: float) -> tuple[Tensor, float]:
    """:func:`lightning_jd.linalg.dual_cone_weights`, and the residual."""
    G, U = to_array("gramian", gramian), to_array("targets", targets)
    C, d, inverse = _arrays.unit_diagonal(G, reg, underflow_level(gramian.dtype))
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
    return _to_tensor(U + inverse * Z, gramian, certain), residual


def upgrad(
    gramian: Tensor, preference: Tensor | None, reg: float, tolerance: float
) -> tuple[Tensor, float]:
    """:func:`lightning_jd.linalg.upgrad_weights`, and the residual."""
    m = gramian.shape[0]
    G = to_array("gramian", gramian)
    p = 1 / m if preference is None else to_array("preference", preference)
    if m == 1:
        return _to_tensor(p + np.zeros(1), gramian, bounded=False), 0.0
    C, d, inverse = _arrays.unit_diagonal(G, reg, underflow_level(gramian.dtype))
    certain, residual = is_certain(reg), 0.0
    if C.min() >= 0:  # nobody conflicts
        weights = p + np.zeros(m)
    elif m == 2:  # z₁₂ = z₂₁ = -c: the pair in closed form
        weights = p - inverse * (C[0, 1] * (p * d)[::-1])
    else:
        noise = noise_level(gramian.dtype, m)
        Z, residual = _host.solve(C, C, noise, well_conditioned=certain, tolerance=tolerance)
        weights = p + inverse * ((p * d) @ Z)
    return _to_tensor(weights, gramian, certain), residual


def is_certain(reg: float) -> bool:
    """Whether ``reg`` alone makes C well-conditioned: no eigenvalue is below ``reg / max d²``."""
    return reg >= _stages.WELL_CONDITIONED * (1 + reg)


def to_array(name: str, tensor: Tensor) -> Array:
    """A float64 array on the host, if it is finite; the only time that the host waits."""
    tensor = tensor.detach()
    if not tensor.is_cpu:
        tensor = tensor.cpu()
    if tensor.dtype == torch.bfloat16:  # unknown to NumPy
        tensor = tensor.float()
    array: Array = tensor.numpy().astype(np.float64, copy=False)
    if not math.isfinite(np.add.reduce(array, axis=None)):  # a sum may overflow: look closer
        check_finite(name, tensor)
    return array


def _residual_of_one(C: Array, q: Array, z: Array, scale: float) -> float:
    if scale == 0:
        return 0.0
    return float(np.abs(np.minimum(z, C @ z + q)).max() / (scale + z.max()))


def _to_tensor(weights: Array, gramian: Tensor, bounded: bool) -> Tensor:
    """The weights in the dtype and on the device of the Gramian; the host does not wait."""
    if bounded and gramian.dtype == torch.float32:
        converted = torch.from_numpy(weights.astype(np.float32))  # cheaper than to convert in torch
    elif bounded and gramian.dtype == torch.float64:
        converted = torch.from_numpy(weights)
    else:
        converted = to_finite(torch.from_numpy(weights), gramian.dtype)
    return converted if gramian.is_cpu else converted.to(gramian.device, non_blocking=True)

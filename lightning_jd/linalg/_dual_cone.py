"""Projection onto the dual cone of the rows of a Jacobian, from its Gramian alone."""

import math

import numpy as np
import torch
from torch import Tensor

from lightning_jd.errors import ArgumentError, ShapeError
from lightning_jd.linalg import _arrays, _host, _stages
from lightning_jd.linalg._arrays import Array
from lightning_jd.linalg._checks import check_finite, check_square
from lightning_jd.linalg._qp import OWN, check_solver, solve_with
from lightning_jd.linalg._scaling import (
    noise_level,
    to_finite,
    underflow_level,
    unit_diagonal,
    work_device,
)
from lightning_jd.linalg._single import solve_single


def dual_cone_weights(
    gramian: Tensor, targets: Tensor, *, reg: float = 1e-4, solver: str = "auto"
) -> Tensor:
    r"""Weights of the projections of :math:`J^\top u` onto the dual cone of the rows of :math:`J`.

    With :math:`G = J J^\top`, the projection of :math:`J^\top u` onto
    :math:`\{d : J d \succeq 0\}` is :math:`J^\top v`, where

    .. math::
        v = \operatorname*{arg\,min}_{v \,\succeq\, u} \; v^\top H v, \qquad
        H = G / \operatorname{tr}(G) + \mathrm{reg} \cdot I .

    ``reg=0`` is the projection itself. A positive ``reg`` bounds the weights and lets an objective
    count less the smaller its gradient is; the program is solved exactly whatever ``reg`` is.

    Where :math:`H` is singular, :math:`v` is not unique, although :math:`J^\top v` is: the answer
    is the one that a vanishing regularisation selects. Where :math:`H` is indefinite by rounding,
    it is shifted, on the unit-diagonal scale, by the least multiple of the identity that lifts its
    eigenvalues above the noise of the dtype of the Gramian. So the weights are always finite.
    An objective without gradient (or with one that underflows when squared) keeps its target; if no
    objective has one, all do.

    Args:
        gramian: :math:`G`, symmetric and positive semi-definite up to rounding, shape ``(m, m)``.
        targets: The vectors :math:`u`, shape ``(k, m)`` or ``(m,)``.
        reg: The regularisation, relative to the trace; at least 0.
        solver: ``"auto"``, ``"batched"`` (torch only, as on an accelerator), or any name that
            ``qpsolvers.available_solvers`` lists.

    Returns:
        The weights :math:`v`, in the shape of ``targets`` and the dtype of ``gramian``.

    Raises:
        ShapeError: If ``gramian`` is not square or ``targets`` does not fit it.
        NonFiniteError: If an entry is NaN or infinite.
        ArgumentError: If ``reg`` is negative or not finite, or a named solver fails.
        UnknownNameError: If there is no such solver.

    Example:
        >>> G = torch.tensor([[1.0, -1.0], [-1.0, 2.0]])
        >>> dual_cone_weights(G, torch.eye(2), reg=0.0)
        tensor([[1.0000, 0.5000],
                [1.0000, 1.0000]])
    """
    _check(gramian, reg, solver)
    if targets.ndim not in (1, 2) or targets.shape[-1] != gramian.shape[0]:
        raise ShapeError(
            f"`targets` must have shape (k, {len(gramian)}) or ({len(gramian)},), "
            f"got {tuple(targets.shape)}."
        )
    if targets.numel() == 0:
        return targets.detach().to(gramian)
    if solver == "auto" and gramian.is_cpu:
        return _project_on_host(gramian, targets, reg)
    weights = _project(gramian, targets.reshape(-1, len(gramian)), reg, solver)
    return weights.reshape(targets.shape)


def upgrad_weights(
    gramian: Tensor,
    preference: Tensor | None = None,
    *,
    reg: float = 1e-4,
    solver: str = "auto",
) -> Tensor:
    r"""Weights of UPGrad: the sum of the projections of all rows, each times its preference.

    .. math::
        w = \sum_{i=1}^{m} p_i \operatorname*{arg\,min}_{v \,\succeq\, e_i} v^\top H v, \qquad
        H = G / \operatorname{tr}(G) + \mathrm{reg} \cdot I .

    The same as ``dual_cone_weights(gramian, diag(p)).sum(dim=0)``, and a little faster.

    Args:
        gramian: :math:`G = J J^\top`, shape ``(m, m)``.
        preference: :math:`p`, shape ``(m,)``, not negative; ``None`` is 1/m each.
        reg: As in :func:`dual_cone_weights`.
        solver: As in :func:`dual_cone_weights`.

    Returns:
        The weights :math:`w`, shape ``(m,)``, in the dtype of ``gramian``.

    Raises:
        ShapeError: If a shape is wrong.
        NonFiniteError: If an entry of ``gramian`` is NaN or infinite.
        ArgumentError: If ``reg`` is negative or not finite, or a named solver fails.
        UnknownNameError: If there is no such solver.

    Example:
        >>> J = torch.tensor([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]])
        >>> J.T @ upgrad_weights(J @ J.T, reg=0.0)
        tensor([0.2924, 1.9006, 1.9006])
    """
    _check(gramian, reg, solver)
    m = gramian.shape[0]
    if preference is not None and preference.shape != (m,):
        raise ShapeError(
            f"`preference` must have one entry per objective ({m}), got shape "
            f"{tuple(preference.shape)}."
        )
    if solver == "auto" and gramian.is_cpu and m > 2:
        return _upgrad_on_host(gramian, preference, reg)
    check_finite("gramian", gramian)
    if preference is None:
        p = torch.full((m,), 1 / m, dtype=torch.float64, device=gramian.device)
    else:
        p = preference.detach().to(gramian.device, torch.float64)
    if m == 1:
        return p.to(gramian.dtype)
    device = work_device(gramian.device)
    C, d, inverse = unit_diagonal(gramian.to(device), reg)
    p = p.to(device)
    if m == 2 and solver in OWN:  # z₁₂ = z₂₁ = max(0, -c): the pair in closed form
        z = (-C[0, 1]).clamp(min=0) * (p * d).flip(0)
    else:
        z = (p * d) @ _solve(C, C, gramian.dtype, solver)
    return to_finite(p + inverse * z, gramian.dtype).to(gramian.device)


def _check(gramian: Tensor, reg: float, solver: str) -> None:
    check_square("gramian", gramian)
    check_solver(solver)
    if not 0 <= reg < math.inf:
        raise ArgumentError(f"`reg` must be at least 0 and finite, got {reg}.")


def _solve(C: Tensor, Q: Tensor, dtype: torch.dtype, solver: str) -> Tensor:
    noise = noise_level(dtype, len(C))
    return _stages.solve(C, Q, noise) if solver in OWN else solve_with(solver, C, Q, noise)


def _project(gramian: Tensor, U: Tensor, reg: float, solver: str) -> Tensor:
    check_finite("gramian", gramian)
    check_finite("targets", U)
    device = work_device(gramian.device)
    C, d, inverse = unit_diagonal(gramian.to(device), reg)
    U = U.detach().to(device, torch.float64)
    Y = U * d
    size = Y.abs().amax(dim=1, keepdim=True)
    size = torch.where(size > 0, size, 1.0)
    Z = _solve(C, (Y / size) @ C, gramian.dtype, solver)
    return to_finite(U + inverse * (Z * size), gramian.dtype).to(gramian.device)


def _project_on_host(gramian: Tensor, targets: Tensor, reg: float) -> Tensor:
    G, U = _to_array("gramian", gramian), _to_array("targets", targets.cpu())
    C, d, inverse = _arrays.unit_diagonal(G, reg, underflow_level(gramian.dtype))
    noise, certain = noise_level(gramian.dtype, len(G)), _is_certain(reg)
    if U.ndim == 1:
        Z = solve_single(C, (U * d) @ C, noise, unique=certain or None)
    else:
        Y = U * d
        size = np.abs(Y).max(axis=1, keepdims=True)
        size[size == 0] = 1
        Z = _host.solve(C, (Y / size) @ C, noise, well_conditioned=certain) * size
    return _to_tensor(U + inverse * Z, gramian.dtype, certain)


def _upgrad_on_host(gramian: Tensor, preference: Tensor | None, reg: float) -> Tensor:
    """``upgrad_weights`` with as few calls as possible: at m = 8 the calls are the cost."""
    m = gramian.shape[0]
    G = _to_array("gramian", gramian)
    p = 1 / m if preference is None else _to_array("preference", preference.cpu())
    C, d, inverse = _arrays.unit_diagonal(G, reg, underflow_level(gramian.dtype))
    certain = _is_certain(reg)
    if C.min() >= 0:  # nobody conflicts
        return _to_tensor(p + np.zeros(m), gramian.dtype, certain)
    Z = _host.solve(C, C, noise_level(gramian.dtype, m), well_conditioned=certain)
    return _to_tensor(p + inverse * ((p * d) @ Z), gramian.dtype, certain)


def _is_certain(reg: float) -> bool:
    """Whether ``reg`` alone makes C well-conditioned: no eigenvalue is below ``reg / max d²``."""
    return reg >= _stages.WELL_CONDITIONED * (1 + reg)


def _to_array(name: str, tensor: Tensor) -> Array:
    if tensor.dtype == torch.bfloat16:  # unknown to NumPy
        tensor = tensor.float()
    array: Array = tensor.detach().numpy().astype(np.float64, copy=False)
    if not math.isfinite(array.sum()):  # a sum may overflow: look closer
        check_finite(name, tensor)
    return array


def _to_tensor(weights: Array, dtype: torch.dtype, bounded: bool) -> Tensor:
    if bounded and dtype == torch.float64:
        return torch.from_numpy(weights)
    if bounded and dtype == torch.float32:
        return torch.from_numpy(weights.astype(np.float32))  # cheaper than to convert in torch
    return to_finite(torch.from_numpy(weights), dtype)

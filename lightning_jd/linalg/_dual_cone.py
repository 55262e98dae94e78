"""Projection onto the dual cone of the rows of a Jacobian, from its Gramian alone."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_jd.errors import ArgumentError, ShapeError
from lightning_jd.linalg import _dual_cone_host, _stages
from lightning_jd.linalg._checks import check_finite, check_square
from lightning_jd.linalg._device import solve_on_device
from lightning_jd.linalg._float64 import has_float64, in_float64
from lightning_jd.linalg._qp import OWN, check_solver, solve_with
from lightning_jd.linalg._scaling import (
    RelativeTo,
    check_scale,
    noise_level,
    to_finite,
    unit_diagonal,
)

ON_HOST = 64  # so many objectives are solved by the host sooner than kernels are launched
SINGLE_TOLERANCE = 1e-6  # what the rounding of a Gramian in float32 moves anyway
FEW = 8  # so many programs are no work for an accelerator


class DualConeSolution(NamedTuple):
    """Weights, and how well they solve the program.

    Attributes:
        weights: As :func:`dual_cone_weights` or :func:`upgrad_weights` returns them.
        residual: The largest natural residual ``max |min(z, w)| / (1 + max z)`` of all programs,
            with ``z = D(v - u)`` and ``w = D⁻¹Hv`` on the unit-diagonal scale, where the largest
            entry of ``Du`` is 1; it is 0 exactly at the solution, before the weights are rounded.
    """

    weights: Tensor
    residual: float


def dual_cone_weights(
    gramian: Tensor,
    targets: Tensor,
    *,
    reg: float = 1e-4,
    relative_to: RelativeTo = "trace",
    solver: str = "auto",
    tolerance: float | None = None,
) -> Tensor:
    r"""Weights of the projections of :math:`J^\top u` onto the dual cone of the rows of :math:`J`.

    With :math:`G = J J^\top`, the projection of :math:`J^\top u` onto
    :math:`\{d : J d \succeq 0\}` is :math:`J^\top v`, where

    .. math::
        v = \operatorname*{arg\,min}_{v \,\succeq\, u} \; v^\top H v, \qquad
        H = G + \mathrm{reg} \cdot \operatorname{diag}(s) .

    ``reg=0`` is the projection itself. A positive ``reg`` bounds the weights, relative to a scale
    :math:`s`. With the trace, :math:`s_i = \operatorname{tr} G`, an objective counts less the
    smaller its gradient is. With the rows themselves, :math:`s_i = G_{ii}`, all count alike: the
    projections are exactly linear under scaling. The program is solved to the same accuracy
    whatever ``reg`` is.

    If :math:`s` is not the trace, :math:`H_{ii}` is at least ``1e-12`` times the trace. So a row
    that is shorter than ``1e-6`` times the root of the trace, the rounding noise of float32, loses
    its influence the shorter it is.

    Where :math:`H` is singular, :math:`v` is not unique, although :math:`J^\top v` is: the answer
    is the one that a vanishing regularisation selects. Where :math:`H` is indefinite by rounding,
    it is shifted, on the unit-diagonal scale, by the least multiple of the identity that lifts its
    eigenvalues above the noise of the dtype of the Gramian. So the weights are always finite.
    An objective without gradient (or with one that underflows when squared) keeps its target; if no
    objective has one, all do.

    Args:
        gramian: :math:`G`, symmetric and positive semi-definite up to rounding, shape ``(m, m)``.
        targets: The vectors :math:`u`, shape ``(k, m)`` or ``(m,)``.
        reg: The regularisation; at least 0.
        relative_to: The scale :math:`s` of ``reg``: ``"trace"``; ``"row"`` for the squared norm of
            each row; or a number per row, which names its block, for the trace of its block.
        solver: ``"auto"``, ``"batched"`` (torch only, as on an accelerator), or any name that
            ``qpsolvers.available_solvers`` lists.
        tolerance: The residual, as in :class:`DualConeSolution`, up to which a program counts as
            solved. ``None`` follows the precision of ``gramian``: 1e-12 for float64, 1e-6 for all
            others, whose own rounding moves the solution as much. 0 is as exact as float64 gets.
            Up to 64 objectives the answer is exact in any case.

    Returns:
        The weights :math:`v`, in the shape of ``targets`` and the dtype of ``gramian``.

    Raises:
        ShapeError: If ``gramian`` is not square or ``targets`` does not fit it.
        NonFiniteError: If an entry is NaN or infinite.
        ArgumentError: If ``reg`` or ``tolerance`` is negative or not finite, or a named solver
            fails.
        UnknownNameError: If there is no such solver.

    Example:
        >>> G = torch.tensor([[1.0, -1.0], [-1.0, 2.0]])
        >>> dual_cone_weights(G, torch.eye(2), reg=0.0)
        tensor([[1.0000, 0.5000],
                [1.0000, 1.0000]])
    """
    return dual_cone_solution(
        gramian, targets, reg=reg, relative_to=relative_to, solver=solver, tolerance=tolerance
    ).weights


def dual_cone_solution(
    gramian: Tensor,
    targets: Tensor,
    *,
    reg: float = 1e-4,
    relative_to: RelativeTo = "trace",
    solver: str = "auto",
    tolerance: float | None = None,
) -> DualConeSolution:
    """:func:`dual_cone_weights` together with the residual that was reached.

    Example:
        >>> G = torch.tensor([[1.0, -1.0], [-1.0, 2.0]])
        >>> dual_cone_solution(G, torch.ones(2)).residual
        0.0
    """
    tolerance = _checked(gramian, reg, relative_to, solver, tolerance)
    if targets.ndim not in (1, 2) or targets.shape[-1] != gramian.shape[0]:
        raise ShapeError(
            f"`targets` must have shape (k, {len(gramian)}) or ({len(gramian)},), "
            f"got {tuple(targets.shape)}."
        )
    if targets.numel() == 0:
        return DualConeSolution(targets.detach().to(gramian), 0.0)
    rows = 1 if targets.ndim == 1 else len(targets)
    if solver == "auto" and _belongs_to_host(gramian, rows, reg):
        return DualConeSolution(
            *_dual_cone_host.project(gramian, targets, reg, tolerance, relative_to)
        )
    C, d, inverse = unit_diagonal(gramian, reg, relative_to)
    U = in_float64(targets.detach()).to(d.device)
    Y = U.reshape(-1, len(C)) * d
    size = Y.abs().amax(dim=1, keepdim=True)
    size = torch.where(size > 0, size, 1.0)
    found = _solve(gramian, targets, C, (Y / size) @ C, reg, solver, tolerance)
    if found is None:
        return DualConeSolution(
            *_dual_cone_host.project(gramian, targets, reg, tolerance, relative_to)
        )
    Z, residual = found
    weights = U + (inverse * (Z * size)).reshape(U.shape)
    return DualConeSolution(to_finite(weights, gramian.dtype).to(gramian.device), residual)


def upgrad_weights(
    gramian: Tensor,
    preference: Tensor | None = None,
    *,
    reg: float = 1e-4,
    relative_to: RelativeTo = "trace",
    solver: str = "auto",
    tolerance: float | None = None,
) -> Tensor:
    r"""Weights of UPGrad: the sum of the projections of all rows, each times its preference.

    .. math::
        w = \sum_{i=1}^{m} p_i \operatorname*{arg\,min}_{v \,\succeq\, e_i} v^\top H v, \qquad
        H = G + \mathrm{reg} \cdot \operatorname{diag}(s) .

    The same as ``dual_cone_weights(gramian, diag(p)).sum(dim=0)``, and a little faster.

    Args:
        gramian: :math:`G = J J^\top`, shape ``(m, m)``.
        preference: :math:`p`, shape ``(m,)``, not negative; ``None`` is 1/m each.
        reg: As in :func:`dual_cone_weights`.
        relative_to: As in :func:`dual_cone_weights`.
        solver: As in :func:`dual_cone_weights`.
        tolerance: As in :func:`dual_cone_weights`.

    Returns:
        The weights :math:`w`, shape ``(m,)``, in the dtype of ``gramian``.

    Raises:
        ShapeError: If a shape is wrong.
        NonFiniteError: If an entry of ``gramian`` is NaN or infinite.
        ArgumentError: If ``reg`` or ``tolerance`` is negative or not finite, or a named solver
            fails.
        UnknownNameError: If there is no such solver.

    Example:
        >>> J = torch.tensor([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]])
        >>> J.T @ upgrad_weights(J @ J.T, reg=0.0)
        tensor([0.2924, 1.9006, 1.9006])
    """
    return upgrad_solution(
        gramian, preference, reg=reg, relative_to=relative_to, solver=solver, tolerance=tolerance
    ).weights


def upgrad_solution(
    gramian: Tensor,
    preference: Tensor | None = None,
    *,
    reg: float = 1e-4,
    relative_to: RelativeTo = "trace",
    solver: str = "auto",
    tolerance: float | None = None,
) -> DualConeSolution:
    """:func:`upgrad_weights` together with the residual that was reached.

    Example:
        >>> upgrad_solution(torch.eye(3)).residual
        0.0
    """
    tolerance = _checked(gramian, reg, relative_to, solver, tolerance)
    m = gramian.shape[0]
    if preference is not None and preference.shape != (m,):
        raise ShapeError(
            f"`preference` must have one entry per objective ({m}), got shape "
            f"{tuple(preference.shape)}."
        )
    if solver == "auto" and _belongs_to_host(gramian, m, reg):
        return DualConeSolution(
            *_dual_cone_host.upgrad(gramian, preference, reg, tolerance, relative_to)
        )
    C, d, inverse = unit_diagonal(gramian, reg, relative_to)
    p = (
        torch.full_like(d, 1 / m)
        if preference is None
        else in_float64(preference.detach()).to(d.device)
    )
    found = _solve(gramian, p, C, C, reg, solver, tolerance)
    if found is None:
        return DualConeSolution(
            *_dual_cone_host.upgrad(gramian, preference, reg, tolerance, relative_to)
        )
    Z, residual = found
    weights = p + inverse * ((p * d) @ Z)
    return DualConeSolution(to_finite(weights, gramian.dtype).to(gramian.device), residual)


def _checked(
    gramian: Tensor, reg: float, relative_to: RelativeTo, solver: str, tolerance: float | None
) -> float:
    """Raise if an argument is wrong; the tolerance as a number."""
    check_square("gramian", gramian)
    check_solver(solver)
    if not 0 <= reg < math.inf:
        raise ArgumentError(f"`reg` must be at least 0 and finite, got {reg}.")
    check_scale(relative_to, len(gramian))
    if tolerance is None:
        return _stages.TOLERANCE if gramian.dtype == torch.float64 else SINGLE_TOLERANCE
    if not 0 <= tolerance < math.inf:
        raise ArgumentError(f"`tolerance` must be at least 0 and finite, got {tolerance}.")
    return max(tolerance, _stages.TOLERANCE)


def _belongs_to_host(gramian: Tensor, rows: int, reg: float) -> bool:
    """Whether a CPU is the right place, in spite of the copy where the Gramian is elsewhere."""
    return (
        gramian.is_cpu
        or not has_float64(gramian.device)
        or gramian.shape[0] <= ON_HOST
        or rows <= FEW
        or not _dual_cone_host.is_certain(reg)  # the robust stages look at every intermediate
    )


def _solve(
    gramian: Tensor,
    other: Tensor,
    C: Tensor,
    Q: Tensor,
    reg: float,
    solver: str,
    tolerance: float,
) -> tuple[Tensor, float] | None:
    """``Z`` for the rows of ``Q``, and its residual; None if the host must solve it.

    Raises:
        NonFiniteError: If ``gramian``, or what ``other`` has to say, is not finite.
    """
    if solver in OWN and _dual_cone_host.is_certain(reg):
        Z, residual = solve_on_device(C, Q, tolerance)
        finite = torch.isfinite(gramian).all() & torch.isfinite(other).all()
        finite = finite.to(residual.device)  # of a Gramian without float64, this is the host
        is_finite, worst = torch.stack([finite.to(residual), residual]).tolist()  # the only wait
        if is_finite and worst <= tolerance:
            return Z, worst
        if is_finite and solver == "auto":
            return None
    check_finite("gramian", gramian)
    check_finite("targets", other)
    noise = noise_level(gramian.dtype, len(C))
    Z = _stages.solve(C, Q, noise) if solver in OWN else solve_with(solver, C, Q, noise)
    return Z, float(_stages.natural_residual(C, Q, Z).amax())

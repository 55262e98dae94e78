"""Certificates: how far given weights are from solving the program that was asked.

All residuals are non-negative, zero exactly at a solution, and independent of the norms of the rows
of the Jacobian: they are taken on the unit-diagonal scale, relative to the size of the weights.
That is the scale of rounding: no float64 answer can be expected to be better than about 1e-15.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lightning_jd.linalg._checks import check_square
from lightning_jd.linalg._float64 import in_float64
from lightning_jd.linalg._scaling import RelativeTo, underflow_level, unit_diagonal


class DualConeResiduals(NamedTuple):
    """Residuals of ``argmin { vᵀHv : v >= u }``, one entry per target.

    Attributes:
        infeasibility: By how much ``v >= u`` is violated.
        violation: By how much the dual cone, ``Hv >= 0``, is violated.
        slackness: By how much ``v > u`` and ``Hv > 0`` hold together, for one objective.
        growth: The largest weight relative to the largest entry of the target, on the same scale.
            The residuals relative to the target are those above times this number.
    """

    infeasibility: Tensor
    violation: Tensor
    slackness: Tensor
    growth: Tensor


class MinNormResiduals(NamedTuple):
    """Residuals of ``argmin { vᵀGv : v >= 0, sum v = 1 }``.

    Attributes:
        infeasibility: By how much ``v >= 0`` or ``sum v = 1`` is violated.
        violation: By how much some row is nearer to the origin, along ``Jᵀv``, than ``Jᵀv`` itself.
        slackness: By how much a row that is farther counts: its weight times its distance.
    """

    infeasibility: Tensor
    violation: Tensor
    slackness: Tensor


def dual_cone_residuals(
    gramian: Tensor,
    targets: Tensor,
    weights: Tensor,
    *,
    reg: float = 1e-4,
    relative_to: RelativeTo = "trace",
) -> DualConeResiduals:
    r"""Certify the answer of :func:`dual_cone_weights`.

    The optimality conditions of ``v`` are ``v - u >= 0``, ``Hv >= 0`` and, entry by entry, that one
    of the two is zero, with :math:`H = G + \mathrm{reg} \cdot \operatorname{diag}(s)`.

    Args:
        gramian: :math:`G`, shape ``(m, m)``.
        targets: The vectors ``u``, shape ``(..., m)``.
        weights: The vectors ``v``, in the shape of ``targets``.
        reg: The regularisation with which the weights were asked.
        relative_to: Its scale :math:`s`, as in :func:`dual_cone_weights`.

    Returns:
        The residuals, in float64 and the shape of ``targets`` without its last dimension.

    Example:
        >>> G = torch.tensor([[1.0, -1.0], [-1.0, 2.0]])
        >>> dual_cone_residuals(G, torch.eye(2), torch.eye(2), reg=0.0).violation
        tensor([0.7071, 0.7071], dtype=torch.float64)
    """
    check_square("gramian", gramian)
    C, d, _ = unit_diagonal(gramian, reg, relative_to)
    y, lower = (in_float64(each).to(d.device) * d for each in (weights, targets))
    tiny = torch.finfo(d.dtype).tiny
    size = torch.maximum(y.abs(), lower.abs()).amax(dim=-1).clamp(min=tiny)
    z, w = y - lower, y @ C
    return DualConeResiduals(
        infeasibility=(-z).clamp(min=0).amax(dim=-1) / size,
        violation=(-w).clamp(min=0).amax(dim=-1) / size,
        slackness=torch.minimum(z, w).clamp(min=0).amax(dim=-1) / size,
        growth=size / lower.abs().amax(dim=-1).clamp(min=tiny),
    )


def min_norm_residuals(gramian: Tensor, weights: Tensor) -> MinNormResiduals:
    r"""Certify the answer of :func:`min_norm_weights`.

    The optimality conditions are :math:`(Gv)_i \ge v^\top G v` for all i, with equality where
    :math:`v_i > 0`. With :math:`s = \sum_j v_j \|g_j\|`, the differences are taken relative to
    :math:`s (\|g_i\| + s)`, the size of the terms in them, and for the slackness times the share
    :math:`v_i \|g_i\| / s`.

    Args:
        gramian: :math:`G`, shape ``(m, m)``.
        weights: :math:`v`, shape ``(m,)``.

    Returns:
        The residuals, scalars in float64.

    Example:
        >>> G = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> min_norm_residuals(G, torch.tensor([1.0, 0.0])).violation  # (0 - 1) / (1 * (1 + 1))
        tensor(0.5000, dtype=torch.float64)
    """
    check_square("gramian", gramian)
    G, v = in_float64(gramian.detach()), in_float64(weights.detach())
    seen = G.diagonal() > underflow_level(gramian.dtype)  # the others count as zero rows
    G = torch.where(seen & seen[:, None], G, 0.0)
    G = G / G.diagonal().amax().clamp(min=torch.finfo(torch.float64).tiny)
    norms = G.diagonal().sqrt()
    size = (v.abs() * norms).sum()
    gap = G @ v - v @ G @ v
    size = torch.where(size > 0, size, 1.0)
    gap = gap / (size * (norms + size))
    share = v * norms / size
    return MinNormResiduals(
        infeasibility=torch.maximum((v.sum() - 1).abs(), (-v).clamp(min=0).amax()),
        violation=(-gap).clamp(min=0).amax(),
        slackness=(share * gap).clamp(min=0).amax(),
    )

"""The program on the unit-diagonal scale, where every threshold is relative.

With ``D = diag(H)^(1/2)``, ``C = D⁻¹HD⁻¹`` and ``y = Dv`` the program ``min vᵀHv, v >= u`` becomes
``min yᵀCy, y >= Du``. Nothing is approximated, and rows whose norms differ by 1e16 become equals.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from lightning_jd.errors import ArgumentError, UnknownNameError
from lightning_jd.linalg._float64 import in_float64

#: What ``reg`` is relative to: the trace, the square of each row, or the trace of each block of
#: rows (one number per row, which names its block).
RelativeTo: TypeAlias = Literal["trace", "row"] | Sequence[int]

#: A diagonal that is regularised relative to rows or blocks is at least this share of the trace.
#: A row that is 1e-6 times as long as the longest one is the rounding of a float32 gradient.
FLOOR = 1e-12


class UnitDiagonal(NamedTuple):
    """``C`` (m, m) with ones on its diagonal, ``d`` (m,) and ``1 / d`` (0 where ``d`` is 0)."""

    C: Tensor
    d: Tensor
    inverse: Tensor


def unit_diagonal(gramian: Tensor, reg: float, relative_to: RelativeTo = "trace") -> UnitDiagonal:
    """Scale ``H = (G + reg diag(s)) / tr(G)`` to a unit diagonal, in float64.

    The scale ``s`` is the trace, or that of the block of each row; in the latter case no diagonal
    entry of ``H`` is below :data:`FLOOR`. It is computed on the device of the Gramian, or on the
    host if that has no float64. An objective without gradient (its diagonal is not above
    :func:`underflow_level`) is decoupled, unless ``reg`` is positive and relative to the trace:
    ``d_i = 0``, and row i of ``C`` is that of the identity. If no objective has a gradient, all are
    decoupled, whatever ``reg`` is.
    """
    G = in_float64(gramian.detach())
    squares = G.diagonal()
    squares = torch.where(squares > underflow_level(gramian.dtype), squares, 0.0)
    largest = squares.amax()
    scale = torch.where(largest > 0, largest, 1.0)  # first by the largest: the trace may overflow
    trace = (squares / scale).sum()
    trace = torch.where(trace > 0, trace, 1.0)
    H = (G / scale + G.T / scale) / (2 * trace)
    shares = squares / scale / trace
    if relative_to == "trace" or reg == 0:
        d = torch.where(largest > 0, shares + reg, 0.0).sqrt()
    else:
        sums = shares if relative_to == "row" else _block_sums(shares, relative_to)
        d = torch.where(squares > 0, (shares + reg * sums).clamp(min=FLOOR), 0.0).sqrt()
    inverse = torch.where(d > 0, 1 / d, 0.0)
    # Rounding, or the underflow of a small diagonal, leaves entries that no Gramian can have.
    C = (H * inverse * inverse[:, None]).clamp(-1, 1)
    C.diagonal().fill_(1.0)
    return UnitDiagonal(C, d, inverse)


def _block_sums(shares: Tensor, blocks: RelativeTo) -> Tensor:
    """The sum of the entries of the block of each entry."""
    index = torch.tensor(blocks).to(shares.device, non_blocking=True)
    return shares.new_zeros(len(shares)).index_add(0, index, shares)[index]


def check_scale(relative_to: RelativeTo, m: int) -> None:
    """Raise unless ``relative_to`` is a known name, or names the block of each of m rows."""
    if isinstance(relative_to, str):
        if relative_to not in ("trace", "row"):
            raise UnknownNameError.of("relative_to", relative_to, ["trace", "row"])
    elif len(relative_to) != m or not 0 <= min(relative_to) <= max(relative_to) < m:
        raise ArgumentError(
            f"`relative_to` must have one entry per row ({m}), from 0 to {m - 1}, which names its "
            f"block, got {len(relative_to)}: {list(relative_to[:10])}."
        )


@cache
def noise_level(dtype: torch.dtype, m: int) -> float:
    """How well the eigenvalues of a unit-diagonal matrix are known if it was stored in ``dtype``.

    Independent rounding errors of size eps in a symmetric matrix move its eigenvalues by about
    ``eps √m``.
    """
    return torch.finfo(dtype).eps * math.sqrt(m)


@cache
def underflow_level(dtype: torch.dtype) -> float:
    """The squared norm up to which a gradient counts as zero.

    The squares that it sums have lost digits to underflow, and what is left of it may contradict
    the rest of the Gramian. Half precision is for storage: its Gramians are summed in float32.
    """
    summed = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32)
    return summed.tiny / summed.eps


def to_finite(weights: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert float64 weights to ``dtype``; what would overflow becomes its largest number."""
    largest = torch.finfo(dtype).max
    return weights.clamp(-largest, largest).to(dtype)

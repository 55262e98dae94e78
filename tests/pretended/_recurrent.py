"""Cells of recurrent layers that accelerators fuse into one kernel, and a CPU does not have.

(With cuDNN a whole layer is one node, ``CudnnRnnBackward0``, which cannot be pretended.)
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _lstm(
    x: Tensor, h: Tensor, cx: Tensor, bx: Tensor | None = None, bh: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    gates = x + h if bx is None or bh is None else x + h + bx + bh
    i, f, g, o = gates.chunk(4, dim=1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], dim=1)


def _lstm_backward(
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    cx: Tensor,
    cy: Tensor,
    workspace: Tensor,
    has_bias: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    i, f, g, o = workspace.chunk(4, dim=1)
    dh = torch.zeros_like(cy) if grad_hy is None else grad_hy
    dc = dh * o * (1 - cy.tanh().square())
    dc = dc if grad_cy is None else dc + grad_cy
    gates = [
        dc * g * i * (1 - i),
        dc * cx * f * (1 - f),
        dc * i * (1 - g.square()),
        dh * cy.tanh() * o * (1 - o),
    ]
    grad = torch.cat(gates, dim=1)
    return grad, dc * f, grad.sum(dim=0) if has_bias else None


def _gru(
    x: Tensor, h: Tensor, hx: Tensor, bx: Tensor | None = None, bh: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    x, h = (x, h) if bx is None or bh is None else (x + bx, h + bh)
    (xr, xz, xn), (hr, hz, hn) = x.chunk(3, dim=1), h.chunk(3, dim=1)
    r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
    n = (xn + r * hn).tanh()
    return (1 - z) * n + z * hx, torch.cat([r, z, n, hx, hn], dim=1)


def _gru_backward(grad_hy: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Tensor | None, ...]:
    r, z, n, hx, hn = workspace.chunk(5, dim=1)
    dn = grad_hy * (1 - z) * (1 - n.square())
    dz = grad_hy * (hx - n) * z * (1 - z)
    dr = dn * hn * r * (1 - r)
    x, h = torch.cat([dr, dz, dn], dim=1), torch.cat([dr, dz, dn * r], dim=1)
    return x, h, grad_hy * z, x.sum(0) if has_bias else None, h.sum(0) if has_bias else None


#: Operation to what computes it on the numbers.
KERNELS: dict[Any, Callable[..., Any]] = {
    aten._thnn_fused_lstm_cell.default: _lstm,
    aten._thnn_fused_lstm_cell_backward_impl.default: _lstm_backward,
    aten._thnn_fused_gru_cell.default: _gru,
    aten._thnn_fused_gru_cell_backward.default: _gru_backward,
}

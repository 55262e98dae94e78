"""Exact ways to the weight gradients of all objectives, shape ``(m, *kernel)``.

Everywhere ``x`` is the input, shape (m, T, in, ...), and ``D`` the cotangent of the output, shape
(m, T, out, ...), with T samples for each of m objectives.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_jd.engines.tape.contributions._pieces import pieces
from lightning_jd.engines.tape.contributions.convolution._geometry import Geometry, weight_gradient

Variant = Callable[[Tensor, Tensor, Geometry], Tensor]


def as_groups(x: Tensor, D: Tensor, geometry: Geometry) -> Tensor:
    """One convolution with m times as many groups, so that no two objectives meet."""
    m = len(x)
    wide = geometry._replace(
        kernel=(m * geometry.kernel[0], *geometry.kernel[1:]), groups=m * geometry.groups
    )
    rows = weight_gradient(_side_by_side(x), _side_by_side(D), wide)
    return rows.reshape(m, *geometry.kernel)


def _side_by_side(x: Tensor) -> Tensor:
    return x.transpose(0, 1).flatten(1, 2).contiguous()


def depthwise(x: Tensor, D: Tensor, geometry: Geometry) -> Tensor:
    """One input channel per group: a truly depthwise convolution per output channel of a group."""
    m, channels = len(x), geometry.kernel[0]
    g, per_group = geometry.groups, channels // geometry.groups
    single = geometry._replace(kernel=(m * g, 1, *geometry.kernel[2:]), groups=m * g)
    wide = _side_by_side(x)
    D = D.unflatten(2, (g, per_group))
    rows = [
        weight_gradient(wide, _side_by_side(D.select(3, j)), single).view(m, g, -1)
        for j in range(per_group)
    ]
    return torch.stack(rows, dim=2).reshape(m, *geometry.kernel)


def unfolded(x: Tensor, geometry: Geometry) -> Tensor:
    """The patches of images (n, in, height, width), shape (n, numbers of a patch, pixels)."""
    return F.unfold(x, geometry.kernel[2:], geometry.dilation, geometry.padding, geometry.stride)


def patches_by_pixel(x: Tensor, D: Tensor, geometry: Geometry) -> Tensor:
    """Patches of the input, channels innermost, laid out by one strided copy; one group only.

    Returns:
        A permuted view: its memory is in the order (m, out, height, width, in).
    """
    m = len(x)
    out, channels, height, width = geometry.kernel
    rows = D.new_empty(m, out, height * width * channels)
    for piece in _pieces(x, D, geometry):
        part = D[piece].flatten(3).transpose(1, 2)
        part = part.reshape(len(part), out, -1)
        torch.bmm(part, _patches(x[piece], D.shape[3:], geometry), out=rows[piece])
    return rows.view(m, out, height, width, channels).permute(0, 1, 4, 2, 3)


def _pieces(x: Tensor, D: Tensor, geometry: Geometry) -> list[slice]:
    """Ranges of objectives whose patches are laid out at a time."""
    m, T, channels = x.shape[:3]
    numbers = T * prod(D.shape[3:]) * channels * prod(geometry.kernel[2:])
    step = max(1, pieces(x).patches // max(1, numbers * x.element_size()))
    return [slice(begin, min(m, begin + step)) for begin in range(0, m, step)]


def _patches(x: Tensor, output: tuple[int, ...], geometry: Geometry) -> Tensor:
    m, T, channels = x.shape[:3]
    height, width = geometry.kernel[2:]
    (pad_y, pad_x), (step_y, step_x) = geometry.padding, geometry.stride
    by_pixel = x.flatten(0, 1).permute(0, 2, 3, 1)
    if pad_y or pad_x:
        by_pixel = F.pad(by_pixel, (0, 0, pad_x, pad_x, pad_y, pad_y))
    by_pixel = by_pixel.contiguous()
    n, y, x_, c = by_pixel.stride()
    windows = by_pixel.as_strided(
        (m * T, *output, height, width, channels),
        (n, y * step_y, x_ * step_x, y * geometry.dilation[0], x_ * geometry.dilation[1], c),
    )
    return windows.reshape(m, -1, height * width * channels)

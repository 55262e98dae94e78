"""The contribution of a convolution weight."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from math import prod

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.engines.tape.contributions._base import Contribution, Rows
from lightning_jd.engines.tape.contributions._fastest import fastest, rounded
from lightning_jd.engines.tape.contributions._outer_product import CHUNK_BYTES
from lightning_jd.engines.tape.contributions.convolution import _variants
from lightning_jd.engines.tape.contributions.convolution._geometry import Geometry, weight_gradient
from lightning_jd.engines.tape.contributions.convolution._pixel_kernel import (
    pixel_kernel_gramian,
    pixel_kernel_pays,
)
from lightning_jd.engines.tape.graph import Placement

#: Like :data:`CHUNK_BYTES`, where memory counts more than time.
LEAN_BYTES = 1 << 20

_BY_ROWS: dict[str, _variants.Variant] = {
    "one by one": _variants.one_by_one,
    "as groups": _variants.as_groups,
    "depthwise": _variants.depthwise,
    "by shifts": _variants.by_shifts,
    "patches by channel": _variants.patches_by_channel,
    "patches by pixel": _variants.patches_by_pixel,
}


class ConvolutionWeight(Contribution):
    """Gradients of a convolution weight, by the variant that was measured to be fastest.

    Args:
        x: Input, shape (m, T, in, ...).
        D: Cotangent of the output, shape (m, T, out, ...).
        geometry: The convolution.
        placement: Where the weight is in its parameter.
    """

    def __init__(self, x: Tensor, D: Tensor, geometry: Geometry, placement: Placement) -> None:
        self.placements = (placement,)
        self.x, self.D, self.geometry = x, D, geometry

    @override
    def gramian(self) -> Tensor:
        return self._gramian_by(self._variant)

    @override
    def lean_gramian(self) -> Tensor:
        by_pixels = pixel_kernel_pays(self.x, self.D, self.geometry)
        return self._gramian_by("pixel kernel" if by_pixels else self._lean_variant, LEAN_BYTES)

    @override
    def lean_settled(self) -> tuple[Tensor, Contribution]:
        if len(self.x) * prod(self.geometry.kernel) > self.D.numel():
            return self.lean_gramian(), self
        rows = Rows(_BY_ROWS[self._lean_variant](self.x, self.D, self.geometry), self.placements[0])
        return rows.gramian(), rows

    @override
    def settled(self, room: int) -> tuple[Tensor, list[Contribution]]:
        width = prod(self.geometry.kernel)
        is_worth_it = width <= room and len(self.x) * width <= 3 * (self.x.numel() + self.D.numel())
        if self._variant == "pixel kernel" or not is_worth_it:
            return self.gramian(), [self]
        rows = Rows(_BY_ROWS[self._variant](self.x, self.D, self.geometry), self.placements[0])
        return rows.gramian(), [rows]

    @override
    def short(self) -> Rows | None:
        if prod(self.geometry.kernel) > Rows.SHORT:
            return None
        return Rows(_BY_ROWS[self._variant](self.x, self.D, self.geometry), self.placements[0])

    @override
    def rows(self) -> Tensor:
        rows = _BY_ROWS[self._row_variant](self.x, self.D, self.geometry)
        return self.placements[0].placed(rows)

    @override
    def gradients(self, weights: Tensor) -> list[Tensor]:
        w = weights.to(self.D.dtype).view(-1, *[1] * (self.D.ndim - 1))
        gradient = weight_gradient(self.x.flatten(0, 1), (self.D * w).flatten(0, 1), self.geometry)
        return [self.placements[0].placed(gradient.unsqueeze(0))[0]]

    @override
    def merged(self, others: Sequence[Contribution]) -> Contribution | None:
        parts = [self]
        for part in others:
            if not isinstance(part, ConvolutionWeight) or part.geometry != self.geometry:
                return None
            if part.x.shape[2:] != self.x.shape[2:] or part.placements != self.placements:
                return None
            parts.append(part)
        if any(part.placements[0].where is not None for part in parts):
            return None
        x, D = torch.cat([p.x for p in parts], dim=1), torch.cat([p.D for p in parts], dim=1)
        return ConvolutionWeight(x, D, self.geometry, self.placements[0])

    @cached_property
    def _variant(self) -> str:
        names = list(self._row_variants())
        is_short = prod(self.geometry.kernel) <= Rows.SHORT
        if not is_short and pixel_kernel_pays(self.x, self.D, self.geometry):
            names.append("pixel kernel")
        return self._fastest(names)

    @property
    def _lean_variant(self) -> str:
        if not self.geometry.is_plain_2d:
            return self._row_variant
        return "patches by pixel" if self.geometry.groups == 1 else "patches by channel"

    @cached_property
    def _row_variant(self) -> str:
        return self._fastest(list(self._row_variants()))

    def _row_variants(self) -> Sequence[str]:
        geometry = self.geometry
        names = ["as groups"]
        if geometry.is_plain_2d:
            names.append("patches by pixel" if geometry.groups == 1 else "patches by channel")
            if geometry.kernel[1] == 1 and 1 < geometry.kernel[0] // geometry.groups <= 4:
                names.append("depthwise")
            if geometry.kernel[1] == 1 and geometry.kernel[0] == geometry.groups:
                names.append("by shifts")
        else:
            names.append("one by one")
        return names

    def _fastest(self, names: Sequence[str]) -> str:
        x, D = self.x, self.D
        orders = (x.is_contiguous(), D.is_contiguous())
        sizes = (*rounded(x.shape), *rounded(D.shape))
        key = (*names, *sizes, *orders, x.dtype, x.device, self.geometry)
        return fastest(key, {name: partial(self._gramian_by, name) for name in names})

    def _gramian_by(self, variant: str, chunk: int = CHUNK_BYTES) -> Tensor:
        x, D, geometry = self.x, self.D, self.geometry
        if variant == "pixel kernel":
            return pixel_kernel_gramian(x[:, 0], D[:, 0], geometry, chunk // 2)
        m, row_bytes = len(x), prod(geometry.kernel) * x.element_size()
        pieces = -(-m * row_bytes // chunk)
        if pieces <= 1 or geometry.transposed or geometry.groups > 1:
            return Rows(_BY_ROWS[variant](x, D, geometry), self.placements[0]).gramian()
        G = D.new_zeros(m, m)
        for part in D.chunk(pieces, dim=2):  # output channels share nothing but the input
            narrow = geometry._replace(kernel=(part.shape[2], *geometry.kernel[1:]))
            G += Rows(_BY_ROWS[variant](x, part, narrow), self.placements[0]).gramian()
        return G

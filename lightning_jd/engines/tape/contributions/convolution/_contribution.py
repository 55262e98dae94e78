"""The contribution of a convolution weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial, reduce
from math import prod
from operator import add

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.engines.tape.contributions._base import (
    Budget,
    Contribution,
    Factors,
    Settled,
)
from lightning_jd.engines.tape.contributions._cross import cross_gramian
from lightning_jd.engines.tape.contributions._outer_product import squared_norms
from lightning_jd.engines.tape.contributions._pieces import pieces
from lightning_jd.engines.tape.contributions._rows import Rows
from lightning_jd.engines.tape.contributions.convolution import _variants
from lightning_jd.engines.tape.contributions.convolution._geometry import Geometry, weight_gradient
from lightning_jd.engines.tape.contributions.convolution._pixel_kernel import (
    pixel_kernel_gramian,
    pixel_kernel_pays,
)
from lightning_jd.engines.tape.graph import Placement

_BY_ROWS: dict[str, _variants.Variant] = {
    "as groups": _variants.as_groups,
    "depthwise": _variants.depthwise,
    "patches by pixel": _variants.patches_by_pixel,
}
#: Numbers in a kernel from which on one more patch costs less than one more convolution.
_NUMBERS_PER_PATCH = 4096
#: On a CPU, a convolution with many groups rearranges its kernels: fewer pixels than these do not
#: pay for that.
_FEW_PIXELS = 128
#: Numbers in the patches of all objectives that are laid out sooner than a convolution is prepared.
_SMALL = 1 << 17


class ConvolutionWeight(Contribution):
    """Gradients of a convolution weight, by the variant that takes least time for its sizes.

    Args:
        x: Input, shape (m, T, in, ...).
        D: Cotangent of the output, shape (m, T, out, ...).
        geometry: The convolution.
        placement: Where the weight is in its parameter.
    """

    def __init__(self, x: Tensor, D: Tensor, geometry: Geometry, placement: Placement) -> None:
        self.placements = (placement,)
        self.x, self.D, self.geometry, self.m = x, D, geometry, len(x)

    @override
    def gramian(self) -> Tensor:
        return self._gramian_by(self._variant)

    @override
    def squared_norms(self) -> Tensor:
        if self._patches_are_few:
            return squared_norms(*self._as_matrix_product(self.D))
        row = prod(self.geometry.kernel) * self.x.element_size()
        step = max(1, pieces(self.x).lean // row)  # fresh memory is slow
        several = zip(self.x.split(step), self.D.split(step), strict=True)
        parts = [ConvolutionWeight(x, D, self.geometry, self.placements[0]) for x, D in several]
        return torch.cat([part._as_rows(self._row_variant).squared_norms() for part in parts])

    @override
    def cross(self, other: Contribution) -> Tensor:
        if self._patches_are_few:
            return super().cross(other)
        return self.rows() @ other.rows().T

    @override
    def settle(self, budget: Budget) -> Settled:
        if budget.is_lean or not budget.keeps:
            return self._settle_lean(budget)
        width, m = prod(self.geometry.kernel), len(self.x)
        is_small = width <= budget.room and m * width <= 5 * (self.x.numel() + self.D.numel())
        if width <= Rows.SHORT or (is_small and self._variant != "pixel kernel"):
            return self._as_rows(self._variant).settle(budget)
        return Settled(self.gramian(), [self])

    def _settle_lean(self, budget: Budget) -> Settled:
        if budget.keeps and len(self.x) * prod(self.geometry.kernel) <= self.D.numel():
            rows = self._as_rows(self._lean_variant)
            return Settled(rows.gramian(), [rows])
        by_pixels = pixel_kernel_pays(self.x, self.D, self.geometry)
        variant = "pixel kernel" if by_pixels else self._lean_variant
        return Settled(self._gramian_by(variant, pieces(self.x).lean), [self])

    def _as_rows(self, variant: str) -> Rows:
        return Rows(_BY_ROWS[variant](self.x, self.D, self.geometry), self.placements[0])

    @override
    def rows(self) -> Tensor:
        return self._as_rows(self._row_variant).rows()

    @override
    def gradients(self, weights: Tensor) -> list[Tensor]:
        w = weights.to(self.D.dtype).view(-1, *[1] * (self.D.ndim - 1))
        if self._has_few_patches:
            A, D = (factor.flatten(0, 1) for factor in self._as_matrix_product(self.D * w))
            gradient = (D.T @ A).view(self.geometry.kernel)
        else:
            x, D = self.x.flatten(0, 1), (self.D * w).flatten(0, 1)
            gradient = weight_gradient(x, D, self.geometry)
        return [self.placements[0].placed(gradient.unsqueeze(0))[0]]

    @override
    def merged(self, others: Sequence[Contribution]) -> Contribution | None:
        parts = self.alike(others)
        mine = self.geometry, self.x.shape[2:]
        if parts is None or any((part.geometry, part.x.shape[2:]) != mine for part in parts):
            return None
        x, D = torch.cat([p.x for p in parts], dim=1), torch.cat([p.D for p in parts], dim=1)
        return ConvolutionWeight(x, D, self.geometry, self.placements[0])

    @override
    def factors(self) -> Factors | None:
        geometry, placement = self.geometry, self.placements[0]
        if not geometry.is_plain_2d or geometry.groups > 1:
            return None
        if placement.where is not None or placement.transposed:
            return None
        m, T, i, o = len(self.D), self._patches, prod(geometry.kernel[1:]), geometry.kernel[0]
        return Factors(
            ("outer product", i, o, True, False),
            ((m, T, i), (m, T, o)),
            lambda: self._as_matrix_product(self.D),
            partial(cross_gramian, bias=False),
        )

    @property
    def _patches(self) -> int:
        """How many pixels of the output, and so patches of the input, an objective has."""
        return self.D.shape[1] * prod(self.D.shape[3:])

    @property
    def _patches_are_few(self) -> bool:
        """Whether patches are smaller than rows, and products of patches cheaper."""
        geometry = self.geometry
        is_product = geometry.is_plain_2d and geometry.groups == 1
        return is_product and self._patches <= geometry.kernel[0]

    @property
    def _has_few_patches(self) -> bool:
        """Whether one matrix product gives the ordinary gradient sooner than a convolution does.

        A CPU rearranges a large kernel for a convolution, which few pixels do not pay for.
        """
        geometry = self.geometry
        if not geometry.is_plain_2d or geometry.groups > 1 or self.D.device.type != "cpu":
            return False
        return _NUMBERS_PER_PATCH * len(self.D) * self._patches <= prod(geometry.kernel)

    def _as_matrix_product(self, cotangents: Tensor) -> tuple[Tensor, Tensor]:
        """Patches of the input, and the cotangents of the pixels that they become.

        Worth its memory where there are few pixels and many channels.
        """
        patches = _variants.unfolded(self.x.flatten(0, 1), self.geometry)
        A = patches.unflatten(0, self.x.shape[:2]).transpose(2, 3).flatten(1, 2)
        return A, cotangents.flatten(3).transpose(2, 3).flatten(1, 2)

    @cached_property
    def _variant(self) -> str:
        is_short = prod(self.geometry.kernel) <= Rows.SHORT
        if not is_short and pixel_kernel_pays(self.x, self.D, self.geometry):
            return "pixel kernel"
        return self._row_variant

    @property
    def _lean_variant(self) -> str:
        is_ungrouped = self.geometry.is_plain_2d and self.geometry.groups == 1
        return "patches by pixel" if is_ungrouped else self._row_variant

    @cached_property
    def _row_variant(self) -> str:
        geometry = self.geometry
        if not geometry.is_plain_2d:
            return "as groups"
        if geometry.kernel[1] == 1 and 1 < geometry.kernel[0] // geometry.groups <= 4:
            # oneDNN has kernels for it, but none in double precision
            return "depthwise" if self.x.dtype == torch.float32 else "as groups"
        if geometry.groups > 1:
            return "as groups"
        laid_out = self._patches * prod(geometry.kernel[2:]) * self.x.shape[2]  # of one objective
        fits = laid_out * self.x.element_size() <= pieces(self.x).temporary
        pays = len(self.x) * laid_out <= _SMALL or self._patches <= _FEW_PIXELS
        return "patches by pixel" if fits and pays else "as groups"

    def _gramian_by(self, variant: str, chunk: int | None = None) -> Tensor:
        x, D, geometry = self.x, self.D, self.geometry
        chunk = chunk or pieces(x).temporary
        if variant == "pixel kernel":
            return pixel_kernel_gramian(x[:, 0], D[:, 0], geometry, chunk // 2)
        return reduce(add, [rows.gramian() for rows in self._in_rows(variant, chunk)])

    def _in_rows(self, variant: str, chunk: int) -> Iterator[Rows]:
        """Some columns of the rows at a time, in any order."""
        geometry = self.geometry
        row_bytes = prod(geometry.kernel) * self.x.element_size()
        number = -(-self.m * row_bytes // chunk)
        if number <= 1 or geometry.transposed or geometry.groups > 1:
            yield self._as_rows(variant)
            return
        for part in self.D.chunk(number, dim=2):  # output channels share nothing but the input
            narrow = geometry._replace(kernel=(part.shape[2], *geometry.kernel[1:]))
            yield Rows(_BY_ROWS[variant](self.x, part, narrow), self.placements[0])

"""Gradients that are held, row by row."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.engines.tape.contributions._base import Budget, Contribution, Settled
from lightning_jd.engines.tape.contributions._products import products
from lightning_jd.engines.tape.graph import Placement

#: Numbers in short rows from which on a copy of them costs more than a product of their own.
_TOGETHER = 1 << 17


class Rows(Contribution):
    """Gradients that are held, one row per objective; for biases, norms and other short parameters.

    Complex rows are held as real ones, with two numbers per entry.

    Args:
        rows: Shape ``(m, *shape)`` with the shape of what the operation consumes, in any memory
            order.
        placement: Where that is in the parameter.
        is_placed: The rows are in the order of the parameter already.
    """

    SHORT = 20_000  # entries of a parameter; below, all such rows share one matrix product

    def __init__(self, rows: Tensor, placement: Placement, *, is_placed: bool = False) -> None:
        self.placements = (placement,)
        if rows.is_complex():  # two numbers per entry, with their real inner product
            rows = torch.view_as_real(
                (rows if is_placed else placement.placed(rows)).resolve_conj()
            )
            is_placed = True
        self._is_placed = is_placed or (placement.where is None and not placement.transposed)
        # Products of rows do not depend on the order of the columns: keep that of the memory
        self._order: list[int] | None = None
        if not rows.is_contiguous():
            self._order = [0, *sorted(range(1, rows.ndim), key=rows.stride, reverse=True)]
            rows = rows.permute(self._order)
        self._shape = rows.shape[1:]
        self.flat = rows.reshape(rows.shape[0], -1)
        self.m, self.width = self.flat.shape

    @override
    def settle(self, budget: Budget) -> Settled:
        is_short = self.width <= self.SHORT and self.flat.numel() <= _TOGETHER
        if budget.keeps and not budget.is_lean and is_short:
            return Settled(None, short=[self])
        return Settled(self.gramian(), [self])

    @override
    def gramian(self) -> Tensor:
        return products(self.flat)

    @override
    def squared_norms(self) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(self.flat, dim=1)
        return norms.square()

    @override
    def rows(self) -> Tensor:
        return self.restored(self.flat)

    @override
    def gradients(self, weights: Tensor) -> list[Tensor]:
        combined = torch.mv(self.flat.T, weights.to(self.flat.dtype))
        return [self.restored(combined.unsqueeze(0))[0]]

    def restored(self, flat: Tensor) -> Tensor:
        """Rows in the order of the memory -> rows in the order of the parameter, (r, size)."""
        if self._order is None:
            rows = flat
        else:
            inverse = sorted(range(len(self._order)), key=self._order.__getitem__)
            rows = flat.view(flat.shape[0], *self._shape).permute(inverse)
            if self._is_placed:
                return rows.reshape(flat.shape[0], -1)
        return rows if self._is_placed else self.placements[0].placed(rows)

"""Several uses of one parameter, whose gradients add up before any product."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor
from typing_extensions import override

from lightning_jd.engines.tape.contributions._base import (
    Budget,
    Contribution,
    Settled,
    products,
)
from lightning_jd.engines.tape.contributions._pieces import SMALLEST
from lightning_jd.engines.tape.contributions._rows import Rows


class SumOfUses(Contribution):
    """Several uses of one parameter, such as a table that is also the last layer.

    Rows are added up in blocks, so that those of a large table are never held.

    Args:
        parts: The uses.
    """

    def __init__(self, parts: Sequence[Contribution]) -> None:
        self.placements = (parts[0].placements[0],)
        self._parts = list(parts)

    @property
    @override
    def m(self) -> int:
        return self._parts[0].m

    @property
    @override
    def inner(self) -> int | None:
        sizes = [part.inner for part in self._parts]
        known = [size for size in sizes if size is not None]
        if len(known) < len(sizes) or any(max(known) % size for size in known):
            return None
        return max(known)

    @override
    def rows(self) -> Tensor:
        first, *others = self._parts
        total = first.rows()
        for part in others:
            total = total + part.rows()
        return total

    @override
    def blocks(self, width: int) -> Iterator[Tensor]:
        if self.inner is None:
            yield self.rows()
            return
        width = max(1, width // self.inner) * self.inner  # the same cuts for all
        for first, *others in zip(*[part.blocks(width) for part in self._parts], strict=True):
            for other in others:
                first += other
            yield first

    @override
    def settle(self, budget: Budget) -> Settled:
        if budget.keeps and not budget.is_lean and self.placements[0].size <= Rows.SHORT:
            return Rows(self.rows(), self.placements[0], is_placed=True).settle(budget)
        return Settled(self.gramian(), [self])

    @override
    def gramian(self) -> Tensor:
        total: Tensor | None = None
        for block in self.blocks(SMALLEST.temporary // (4 * self.m)):
            total = products(block) if total is None else total.add_(products(block))
        assert total is not None
        return total

    @override
    def gradients(self, weights: Tensor) -> list[Tensor]:
        first, *others = self._parts
        (total,) = first.gradients(weights)
        for part in others:
            total = total + part.gradients(weights)[0]
        return [total]


def merge(parts: Sequence[Contribution]) -> Contribution:
    """All uses of some parameters as one contribution."""
    first, *others = parts
    if not others:
        return first
    return first.merged(others) or SumOfUses(parts)

"""Several uses of one parameter, whose gradients add up before any product."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import combinations, product
from operator import add

from torch import Tensor
from typing_extensions import override

from lightning_jd.engines.tape.contributions._base import (
    Budget,
    Contribution,
    Settled,
    inner_of,
    shortcut,
    side_by_side,
)
from lightning_jd.engines.tape.contributions._pieces import SMALLEST
from lightning_jd.engines.tape.contributions._products import products
from lightning_jd.engines.tape.contributions._rows import Rows


class SumOfUses(Contribution):
    """Several uses of one parameter, such as a table that is also the last layer.

    Where all uses can be multiplied with each other without their rows, no row is formed.
    Otherwise rows are added up in blocks, so that those of a large table are never held.
    """

    def __init__(self, parts: Sequence[Contribution]) -> None:
        self.placements = (parts[0].placements[0],)
        self._parts, self.m = parts, parts[0].m

    @property
    @override
    def inner(self) -> int | None:
        return inner_of(self._parts)

    @override
    def rows(self) -> Tensor:
        return reduce(add, (part.rows() for part in self._parts))

    @override
    def blocks(self, width: int) -> Iterator[Tensor]:
        for first, *others in side_by_side(self._parts, width):
            total = first.clone() if self.inner is None else first
            for other in others:
                total += other
            yield total

    @override
    def settle(self, budget: Budget) -> Settled:
        if budget.keeps and not budget.is_lean and self.placements[0].size <= Rows.SHORT:
            return Rows(self.rows(), self.placements[0], is_placed=True).settle(budget)
        return Settled(self.gramian(), [self])

    @override
    def gramian(self) -> Tensor:
        total = self._gramian_by_pairs()
        if total is not None:
            return total
        for block in self.blocks(SMALLEST.temporary // (4 * self.m)):
            total = products(block) if total is None else total.add_(products(block))
        assert total is not None
        return total

    @override
    def squared_norms(self) -> Tensor:
        total = reduce(add, [part.squared_norms() for part in self._parts])
        for one, other in combinations(self._parts, 2):
            found = one.pairs_with(other)
            found = other.pairs_with(one) if found is None else found
            if found is None:
                return super().squared_norms()
            total = total + 2 * found
        return total

    @override
    def cross(self, other: Contribution) -> Tensor:
        others = other._parts if isinstance(other, SumOfUses) else [other]
        total: Tensor | None = None
        for one, another in product(self._parts, others):
            found = shortcut(one, another)
            if found is None:
                return super().cross(other)
            total = found if total is None else total + found
        assert total is not None
        return total

    def _gramian_by_pairs(self) -> Tensor | None:
        mixed: Tensor | None = None
        for one, other in combinations(self._parts, 2):
            found = one.products_with(other)
            if found is None:
                turned = other.products_with(one)
                found = None if turned is None else turned.T
            if found is None:
                return None
            mixed = found if mixed is None else mixed + found
        if mixed is None:
            return None
        total = mixed + mixed.T
        for part in self._parts:
            total += part.gramian()
        return total

    @override
    def gradients(self, weights: Tensor) -> list[Tensor]:
        first, *others = self._parts
        (total,) = first.gradients(weights)
        for part in others:
            part.add_gradient(weights, total)
        return [total]


def merge(parts: Sequence[Contribution]) -> Contribution:
    """All uses of some parameters as one contribution."""
    first, *others = parts
    if not others:
        return first
    return first.merged(others) or SumOfUses(parts)

"""Gradients of parameters that one objective alone depends on, as the head of a task."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor
from typing_extensions import override

from lightning_jd.engines.tape.contributions._base import Contribution


class OneRow(Contribution):
    """One row of m; all others are zero.

    Args:
        row: The contribution of that objective, as if there were no other.
        k: Which objective it is.
        m: The number of objectives.
    """

    def __init__(self, row: Contribution, k: int, m: int) -> None:
        self.placements = row.placements
        self._row, self._k, self.m = row, k, m

    @override
    def gramian(self) -> Tensor:
        square = self._row.gramian()
        G = square.new_zeros(self.m, self.m)
        G[self._k, self._k] = square[0, 0]
        return G

    @override
    def squared_norms(self) -> Tensor:
        square = self._row.squared_norms()
        squares = square.new_zeros(self.m)
        squares[self._k] = square[0]
        return squares

    @override
    def rows(self) -> Tensor:
        return self._among_others(self._row.rows())

    @property
    @override
    def inner(self) -> int | None:
        return self._row.inner

    @override
    def blocks(self, width: int) -> Iterator[Tensor]:
        return map(self._among_others, self._row.blocks(width))

    def _among_others(self, row: Tensor) -> Tensor:
        rows = row.new_zeros(self.m, row.shape[1])
        rows[self._k] = row[0]
        return rows

    @override
    def gradients(self, weights: Tensor) -> list[Tensor]:
        return self._row.gradients(weights[self._k : self._k + 1])

    @override
    def alone(self) -> tuple[int, Contribution]:
        return self._k, self._row

    @override
    def split(self) -> list[Contribution]:
        return [OneRow(part, self._k, self.m) for part in self._row.split()]

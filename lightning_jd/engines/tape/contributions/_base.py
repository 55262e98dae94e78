"""What one use of a parameter adds to the Gramian, and to the gradients once weights are known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.engines.tape.graph import Placement

#: Columns that are multiplied at a time: kernels for few rows add all columns up one by one, which
#: loses digits, and is slow.
_COLUMNS = 1 << 14
_FEW_ROWS = 32


def products(rows: Tensor) -> Tensor:
    """Inner products of rows, shape (m, n) -> (m, m)."""
    if len(rows) >= _FEW_ROWS or rows.shape[1] <= _COLUMNS:
        return rows @ rows.T
    first, *others = rows.split(_COLUMNS, dim=1)
    total: Tensor = first @ first.T
    for some in others:
        total.addmm_(some, some.T)
    return total


class Contribution(ABC):
    r"""The gradients of all objectives with respect to one parameter (or several), unexpanded.

    Row i of the Jacobian restricted to these parameters is :math:`J_i`. A contribution knows enough
    to give :math:`J J^\top` and :math:`J^\top w` without, in general, holding :math:`J`.

    Attributes:
        placements: Where the gradients belong, one per parameter.
    """

    placements: tuple[Placement, ...]

    @abstractmethod
    def gramian(self) -> Tensor:
        r""":math:`J J^\top`, shape (m, m)."""

    @abstractmethod
    def rows(self) -> Tensor:
        r""":math:`J` with one row per objective, shape (m, size); for a single parameter only."""

    @abstractmethod
    def gradients(self, weights: Tensor) -> list[Tensor]:
        r""":math:`J^\top w`, one flat tensor of shape (size,) per parameter."""

    def lean_gramian(self) -> Tensor:
        """The same with little memory for temporary results, and perhaps slower."""
        return self.gramian()

    def lean_settled(self) -> tuple[Tensor, Contribution]:
        """:meth:`lean_gramian`, and what takes least memory to keep for :meth:`gradients`."""
        return self.lean_gramian(), self

    def blocks(self, width: int) -> Iterator[Tensor]:
        """:meth:`rows`, some columns at a time.

        Args:
            width: How many columns there may be at the same time, where the gradients allow to form
                some of them alone.

        Yields:
            Blocks of shape (m, columns), from left to right.
        """
        yield self.rows()

    def merged(self, others: Sequence[Contribution]) -> Contribution | None:
        """This and other uses of the same parameters in one; ``None`` if there is no short cut."""
        return None

    def split(self) -> list[Contribution]:
        """The same, one contribution per parameter."""
        return [self]

    def apart(self) -> list[Contribution]:
        """:meth:`split` where that is cheaper, else itself."""
        return [self]

    def stacked(self, others: Sequence[Contribution]) -> Contribution:
        """The rows of several passes, those of one instance together: order (instance, pass)."""
        rows = torch.stack([part.rows() for part in (self, *others)], dim=1)
        return Rows(rows.flatten(0, 1), self.placements[0], is_placed=True)

    def short(self) -> Rows | None:
        """The rows, if they are so short that a matrix product for them alone would be a waste."""
        return None

    def settled(self, room: int) -> tuple[Tensor, list[Contribution]]:
        """The Gramian, and what to keep for :meth:`gradients`.

        Rows that had to be formed for the Gramian save the work of forming the gradient again, if
        they are kept. But all rows together are the Jacobian, which nobody wants to hold.

        Args:
            room: How many columns of rows may be kept.
        """
        return self.gramian(), [self]


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
        self.width = self.flat.shape[1]

    @override
    def short(self) -> Rows | None:
        return self if self.width <= self.SHORT else None

    @override
    def gramian(self) -> Tensor:
        return products(self.flat)

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


class SumOfUses(Contribution):
    """Several uses of one parameter, whose gradients add up before any product.

    Args:
        parts: The uses.
    """

    def __init__(self, parts: Sequence[Contribution]) -> None:
        self.placements = (parts[0].placements[0],)
        self._parts = list(parts)

    @override
    def gramian(self) -> Tensor:
        return products(self.rows())

    @override
    def rows(self) -> Tensor:
        first, *others = self._parts
        total = first.rows()
        for part in others:
            total = total + part.rows()
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

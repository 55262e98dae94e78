"""What one use of a parameter adds to the Gramian, and to the gradients once weights are known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor
from typing_extensions import Self

from lightning_jd.engines.tape.contributions._products import COLUMNS, sum_of_products
from lightning_jd.engines.tape.graph import Placement

if TYPE_CHECKING:
    from lightning_jd.engines.tape.contributions._projection import Projection
    from lightning_jd.engines.tape.contributions._rows import Rows


@dataclass(frozen=True)
class Budget:
    """What may be spent on a Gramian.

    Attributes:
        room: How many columns of rows may be kept to save work; all columns would be the Jacobian.
        keeps: Whether gradients will be asked for.
        is_lean: Whether memory counts more than time.
    """

    room: int = 0
    keeps: bool = True
    is_lean: bool = False


class Settled(NamedTuple):
    """A contribution whose Gramian is known.

    Attributes:
        gramian: Its share of the Gramian; ``None`` if that is in ``short``.
        kept: What to keep for the gradients, in the form that saves most work.
        short: Rows so short that a product for them alone would be a waste; they are kept, too.
    """

    gramian: Tensor | None
    kept: Sequence[Contribution] = ()
    short: Sequence[Rows] = ()


def together(parts: Iterable[Settled]) -> Settled:
    """Contributions to several parameters as one."""
    total: Tensor | None = None
    kept: list[Contribution] = []
    short: list[Rows] = []
    for part in parts:
        if part.gramian is not None:
            total = part.gramian if total is None else total + part.gramian
        kept += part.kept
        short += part.short
    return Settled(total, kept, short)


@dataclass(frozen=True)
class Factors:
    """Small tensors that rows are made of, and that other processes can multiply their rows with.

    Attributes:
        key: Rows on two processes can be multiplied by their factors if their keys are equal.
        shapes: The shapes of the tensors of this process.
        tensors: Makes the tensors, which is work only where they travel.
        cross: The inner products of rows, shape (rows here, rows there), from the tensors here and
            those of another process.
    """

    key: Hashable
    shapes: tuple[tuple[int, ...], ...]
    tensors: Callable[[], tuple[Tensor, ...]]
    cross: Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor]


class Contribution(ABC):
    r"""The gradients of all objectives with respect to one parameter (or several), unexpanded.

    Row i of the Jacobian restricted to these parameters is :math:`J_i`. A contribution knows enough
    to give :math:`J J^\top` and :math:`J^\top w` without, in general, holding :math:`J`. A new kind
    needs :meth:`rows` and :meth:`gradients`; the other methods make it faster, or smaller.

    Attributes:
        placements: Where the gradients belong, one per parameter.
    """

    placements: tuple[Placement, ...]

    @abstractmethod
    def rows(self) -> Tensor:
        r""":math:`J` with one row per objective, shape (m, size); for a single parameter only."""

    @abstractmethod
    def gradients(self, weights: Tensor) -> list[Tensor]:
        r""":math:`J^\top w`, one new, flat tensor of shape (size,) per parameter."""

    @cached_property
    def m(self) -> int:
        """The number of objectives."""
        return len(self.rows())

    @property
    def inner(self) -> int | None:
        """How many columns cannot be formed without each other; ``None`` if that is all."""
        return None

    def blocks(self, width: int) -> Iterator[Tensor]:
        """:meth:`rows`, some columns at a time, from left to right, each of shape (m, columns).

        Args:
            width: How many columns there may be at the same time; at least :attr:`inner`.
        """
        yield self.rows()

    def gramian(self) -> Tensor:
        r""":math:`J J^\top`, shape (m, m)."""
        if len(self.placements) > 1:
            return reduce(add, [part.gramian() for part in self.split()])
        return sum_of_products(self.blocks(COLUMNS))

    def squared_norms(self) -> Tensor:
        r"""The diagonal of :math:`J J^\top`, shape (m,); for a single parameter only."""
        return reduce(add, [block.square().sum(dim=1) for block in self.blocks(COLUMNS)])

    def cross(self, other: Contribution) -> Tensor:
        r""":math:`J K^\top` with the rows K of other objectives, shape (m of J, m of K).

        Args:
            other: Their gradients with respect to the same parameter; a single one.
        """
        found = shortcut(self, other)
        if found is None:
            found = reduce(add, [J @ K.T for J, K in side_by_side([self, other], COLUMNS)])
        return found

    def project(self, projection: Projection) -> Tensor:
        r""":math:`J R` for a random R, shape (m, dimensions); for a single parameter only."""
        return projection.of(self.blocks(COLUMNS))

    def settle(self, budget: Budget) -> Settled:
        """The Gramian, and what to keep for :meth:`gradients`.

        Rows that had to be formed for the Gramian save the work of forming the gradient again, if
        they are kept. But all rows together are the Jacobian, which nobody wants to hold.
        """
        return Settled(self.gramian(), [self])

    def add_gradient(self, weights: Tensor, total: Tensor) -> None:
        r"""Add :math:`J^\top w` to a flat tensor of shape (size,); for a single parameter only."""
        total += self.gradients(weights)[0]

    def products_with(self, other: Contribution) -> Tensor | None:
        """Inner products with the rows of another use of the same parameter, shape (m, m).

        Returns:
            ``None`` if they are cheaper, or only to be had, by forming rows.
        """
        return None

    def pairs_with(self, other: Contribution) -> Tensor | None:
        """The diagonal of :meth:`products_with`, shape (m,), or ``None``."""
        return None

    def split(self) -> list[Contribution]:
        """The same, one contribution per parameter."""
        return [self]

    def merged(self, others: Sequence[Contribution]) -> Contribution | None:
        """This and other uses of the same parameters in one; ``None`` if there is no short cut."""
        return None

    def alike(self, others: Sequence[Contribution]) -> list[Self] | None:
        """This and other uses, if they are of one kind, and of the same whole parameters."""
        parts = [self]
        for part in others:
            if not isinstance(part, type(self)) or part.placements != self.placements:
                return None
            parts.append(part)
        is_whole = all(part.placements[0].where is None for part in parts)
        return parts if is_whole else None

    def stacked(self, others: Sequence[Contribution]) -> Contribution | None:
        """The rows of several passes, those of one instance together: order (instance, pass).

        Returns:
            ``None`` if there is no short cut.
        """
        return None

    def alone(self) -> tuple[int, Contribution] | None:
        """The one objective that reaches the parameters, and what it contributes, if it is known.

        Returns:
            Its position, and its contribution as if there were no other objective.
        """
        return None

    def factors(self) -> Factors | None:
        """What other processes need to know of the rows; ``None`` if that is the rows."""
        return None


def shortcut(one: Contribution, other: Contribution) -> Tensor | None:
    """The inner products of the rows of two contributions without rows, if that is cheaper."""
    if (found := one.products_with(other)) is not None:
        return found
    if (turned := other.products_with(one)) is not None:
        return turned.T
    here, there = one.factors(), other.factors()
    if here is None or there is None or here.key != there.key:
        return None
    return here.cross(here.tensors(), there.tensors())


def inner_of(parts: Sequence[Contribution]) -> int | None:
    """:attr:`Contribution.inner` of several uses of one parameter, which are cut alike."""
    sizes = [part.inner for part in parts]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes) or any(max(known) % size for size in known):
        return None
    return max(known)


def side_by_side(parts: Sequence[Contribution], width: int) -> Iterator[tuple[Tensor, ...]]:
    """:meth:`Contribution.blocks` of several uses of one parameter, with the same columns each."""
    if (inner := inner_of(parts)) is None:
        yield tuple([part.rows() for part in parts])
        return
    width = max(1, width // inner) * inner
    yield from zip(*[part.blocks(width) for part in parts], strict=True)

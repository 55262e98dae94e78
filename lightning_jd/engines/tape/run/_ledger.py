"""Adds contributions up to a Gramian, and computes gradients once the weights are known."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.engines.tape.contributions import Budget, Contribution, Rows, merge, products
from lightning_jd.engines.tape.plan import Plan, Unit
from lightning_jd.errors import GraphError


class Ledger:
    """The Gramian so far, and the contributions that gradients are computed from.

    Args:
        m: The number of objectives.
        dtype: The type of the Gramian.
        device: Its device.
        room: How many columns of rows may be kept to save work; all columns would be the Jacobian.
        keeps: Whether contributions are kept for :meth:`gradients`.
        lean: Whether memory counts more than time.
        notes: Whether the share of each contribution in the Gramian is noted.
        once: Whether gradients are computed once only: what they are computed from is freed then.
    """

    def __init__(
        self,
        m: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        room: int = 0,
        keeps: bool = True,
        lean: bool = False,
        notes: bool = False,
        once: bool = False,
    ) -> None:
        self.G = torch.zeros(m, m, dtype=dtype, device=device)
        #: Parameters and their share of the Gramian.
        self.shares: list[tuple[tuple[int, ...], Tensor]] = []
        #: Parameters whose gradients cannot be had here.
        self.unkept: set[int] = set()
        self.keeps, self._lean = keeps, lean
        self._room = room
        self._notes = notes
        self._once, self._is_spent = once, False
        self._is_empty = True
        self._short: list[Rows] = []
        self._short_rows: Tensor | None = None
        self._kept: list[Contribution] = []

    def add(self, contribution: Contribution, *, keeps: bool = True) -> None:
        """Add what some parameters contribute; nothing else may contribute to them jointly.

        Args:
            contribution: The contribution.
            keeps: Whether it may be kept.
        """
        keeps = self.keeps and keeps
        settled = contribution.settle(Budget(self._room, keeps, self._lean or not keeps))
        if settled.gramian is not None:
            self._count(contribution, settled.gramian)
        self._short += settled.short
        if keeps:
            self._kept += settled.kept
            self._room -= sum(part.width for part in settled.kept if isinstance(part, Rows))
        else:
            self.unkept.update(placement.parameter for placement in contribution.placements)

    def close(self) -> Tensor:
        """Add the short rows, all in one product, and return the Gramian."""
        if self._short:
            for rows in self._short:
                self._note(rows)
            flats = [rows.flat.to(self.G) for rows in self._short]
            together = torch.cat(flats, dim=1) if len(flats) > 1 else flats[0]
            self._sum(products(together))
            for rows in self._short:
                rows.flat = together[:0]  # one copy is enough
            self._short_rows = together
        return self.G

    def gradients(self, weights: Tensor) -> dict[int, Tensor]:
        """Combined gradients, flat, by parameter, but for those that are :attr:`unkept`.

        Raises:
            GraphError: If they are computed twice, and the contributions were freed.
        """
        if self._is_spent:
            raise GraphError(
                "Gradients can be asked for once where the graph is freed, got a second call. Pass "
                "`retain_graph=True`."
            )
        self._is_spent = self._once
        found: dict[int, Tensor] = {}
        for parameter, part in self.parts_of_gradients(weights):
            if parameter in self.unkept:
                continue
            found[parameter] = found[parameter] + part if parameter in found else part
        return found

    def parts_of_gradients(
        self, weights: Tensor, only: Container[int] | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """Combined gradients, flat, one at a time; those of a parameter add up."""
        kept = self._kept
        while kept:
            contribution, *kept = kept
            if self._is_spent:
                self._kept = kept  # gradients take the memory of what they were made of
            if only is not None and contribution.placements[0].parameter not in only:
                continue
            gradients = list(contribution.gradients(weights))
            for placement in contribution.placements:
                yield placement.parameter, gradients.pop(0)  # no name: it must not outlive its use
        if self._short_rows is not None:
            combined = torch.mv(self._short_rows.T, weights.to(self._short_rows.dtype))
            widths = [rows.width for rows in self._short]
            for rows, part in zip(self._short, combined.split(widths), strict=True):
                if only is None or rows.placements[0].parameter in only:
                    yield rows.placements[0].parameter, rows.restored(part.unsqueeze(0))[0]

    def _count(self, contribution: Contribution, share: Tensor) -> None:
        share = share.to(self.G)
        self._sum(share)
        self._note(contribution, share)

    def _sum(self, share: Tensor) -> None:
        if self._is_empty and not self._notes:
            self.G = share
        else:
            self.G += share
        self._is_empty = False

    def _note(self, contribution: Contribution, share: Tensor | None = None) -> None:
        if self._notes:
            parameters = tuple(placement.parameter for placement in contribution.placements)
            share = contribution.gramian().to(self.G) if share is None else share
            self.shares.append((parameters, share))


class Collector(Ledger):
    """A ledger that multiplies nothing: rows on other processes may be missing from the products.

    Its ``G`` stays zero; gradients are given out as by any ledger.

    Args:
        take: Receives each contribution.
        options: Arguments of :class:`Ledger`.
    """

    def __init__(
        self, *args: Any, take: Callable[[Contribution], object] | None = None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._take = take

    @override
    def add(self, contribution: Contribution, *, keeps: bool = True) -> None:
        if self._take is not None:
            self._take(contribution)
        if self.keeps:
            self._kept.append(contribution)

    @property
    def contributions(self) -> list[Contribution]:
        """All of them; contributions to the same parameter have different entries of it."""
        return self._kept

    def hold(self, contribution: Contribution, others: Sequence[Contribution]) -> None:
        """Keep others in the place of a contribution: rows that have been formed of it."""
        position = next(k for k, kept in enumerate(self._kept) if kept is contribution)
        self._kept[position : position + 1] = others


class Assembly:
    """Passes units on to the ledger as soon as all their uses have been delivered."""

    def __init__(self, plan: Plan, ledger: Ledger) -> None:
        self._ledger = ledger
        self._unit_of: dict[int, Unit] = {}
        for unit in plan.units:
            if plan.computed.isdisjoint(unit.parameters):
                for position in unit.uses:
                    self._unit_of[position] = unit
        self._waiting: dict[Unit, dict[int, list[Contribution]]] = {}
        #: Contributions of uses that belong to no unit here, by position.
        self.others: dict[int, list[Contribution]] = {}

    def deliver(self, position: int, parts: list[Contribution]) -> None:
        """Take the contributions of one use."""
        unit = self._unit_of.get(position)
        if unit is None:
            self.others[position] = parts
        elif len(unit.uses) == 1:
            self._settle([parts])
        else:
            received = self._waiting.setdefault(unit, {})
            received[position] = parts
            if len(received) == len(unit.uses):
                self._settle(list(self._waiting.pop(unit).values()))

    def close(self) -> None:
        """Settle the units of which some uses received no gradient."""
        while self._waiting:
            _, received = self._waiting.popitem()
            self._settle(list(received.values()))

    def _settle(self, uses: Sequence[list[Contribution]]) -> None:
        if all(len(parts) == 1 for parts in uses):
            first, *others = [parts[0] for parts in uses]
            together = first.merged(others) if others else first
            if together is not None:
                self._ledger.add(together)
                return
        by_parameter: dict[int, list[Contribution]] = {}
        for parts in uses:
            for part in parts:
                for single in part.split():
                    by_parameter.setdefault(single.placements[0].parameter, []).append(single)
        for parts in by_parameter.values():
            self._ledger.add(merge(parts))

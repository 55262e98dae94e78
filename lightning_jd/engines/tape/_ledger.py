"""Adds contributions up to a Gramian, and hands gradients out once the weights are known."""

from __future__ import annotations

from collections.abc import Container, Iterator

import torch
from torch import Tensor

from lightning_jd.engines.tape._contribution import Contribution, Rows


class Ledger:
    """The Gramian so far, and what is needed for the gradients.

    Args:
        m: The number of objectives.
        dtype: The type of the Gramian.
        device: Its device.
        room: How many columns of rows may be kept to save work; all columns would be the Jacobian.
        keeps: Whether contributions are kept for :meth:`gradients`.
        notes: Whether the share of each contribution in the Gramian is noted.
        expands: Whether the Jacobian itself is wanted, in :attr:`rows`.
    """

    def __init__(
        self,
        m: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        room: int = 0,
        keeps: bool = True,
        notes: bool = False,
        expands: bool = False,
    ) -> None:
        self.G = torch.zeros(m, m, dtype=dtype, device=device)
        #: Parameters and their share of the Gramian.
        self.shares: list[tuple[tuple[int, ...], Tensor]] = []
        #: Parameters whose gradients cannot be had here.
        self.unkept: set[int] = set()
        #: Parameter to its columns of the Jacobian, shape (m, size); only if wanted.
        self.rows: dict[int, Tensor] = {}
        self._expands = expands
        self._room, self._keeps = room, keeps
        self._notes = notes
        self._short: list[Rows] = []
        self._short_rows: Tensor | None = None
        self._kept: list[Contribution] = []

    def add(self, contribution: Contribution, *, keeps: bool = True) -> None:
        """Add what some parameters contribute; nothing else may contribute to them jointly.

        Args:
            contribution: The contribution.
            keeps: Whether it may be kept.
        """
        if self._expands:
            for part in contribution.split():
                self._expand(part)
            return
        for part in contribution.apart():
            self._add(part, self._keeps and keeps)

    def _expand(self, contribution: Contribution) -> None:
        (placement,) = contribution.placements
        rows = Rows(contribution.rows().to(self.G), placement, is_placed=True)
        share = rows.gramian()
        self.G += share
        self._note(rows, share)
        self._kept.append(rows)
        before = self.rows.get(placement.parameter)
        self.rows[placement.parameter] = rows.flat if before is None else before + rows.flat

    def _add(self, contribution: Contribution, keeps: bool) -> None:
        if not keeps:
            self.unkept.update(placement.parameter for placement in contribution.placements)
        if (short := contribution.short()) is not None:
            self._short.append(short)
            return
        share, kept = contribution.settled(self._room if keeps else 0)
        share = share.to(self.G)
        self.G += share
        self._note(contribution, share)
        if keeps:
            self._kept += kept
            self._room -= sum(part.width for part in kept if isinstance(part, Rows))

    def close(self) -> Tensor:
        """Add the short rows, all in one product, and return the Gramian."""
        if self._short:
            if self._notes:
                for rows in self._short:
                    self._note(rows, rows.gramian().to(self.G))
            flats = [rows.flat.to(self.G) for rows in self._short]
            together = torch.cat(flats, dim=1) if len(flats) > 1 else flats[0]
            self.G.addmm_(together, together.T)
            for rows in self._short:
                rows.flat = together[:0]  # one copy is enough
            self._short_rows = together if self._keeps else None
        return self.G

    def gradients(self, weights: Tensor) -> dict[int, Tensor]:
        """Combined gradients, flat, by parameter, but for those that are :attr:`unkept`."""
        found: dict[int, Tensor] = {}
        for parameter, part in self.parts_of_gradients(weights):
            if parameter in self.unkept:
                continue
            found[parameter] = found[parameter] + part if parameter in found else part
        return found

    def parts_of_gradients(
        self, weights: Tensor, only: Container[int] | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """Combined gradients, flat, one at a time; those of a parameter add up.

        Args:
            weights: w, shape (m,).
            only: The parameters to give the gradients of; all by default.
        """
        for contribution in self._kept:
            if only is not None and contribution.placements[0].parameter not in only:
                continue
            gradients = contribution.gradients(weights)
            for placement, gradient in zip(contribution.placements, gradients, strict=True):
                yield placement.parameter, gradient
        if self._short_rows is not None:
            combined = weights.to(self._short_rows.dtype) @ self._short_rows
            widths = [rows.width for rows in self._short]
            for rows, part in zip(self._short, combined.split(widths), strict=True):
                if only is None or rows.placements[0].parameter in only:
                    yield rows.placements[0].parameter, rows.restored(part.unsqueeze(0))[0]

    def _note(self, contribution: Contribution, share: Tensor) -> None:
        if self._notes:
            parameters = tuple(placement.parameter for placement in contribution.placements)
            self.shares.append((parameters, share))

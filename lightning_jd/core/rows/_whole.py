"""Rows of micro-batches, processes, or both: each process holds its own with all their columns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.core.processes._delivery import Delivery, Gradients, delivered
from lightning_jd.core.processes._layout import Description, Layout
from lightning_jd.core.processes._pool import Pool
from lightning_jd.core.processes._selection import PooledSelection
from lightning_jd.core.rows._base import Nonfinite, Rows, nothing_reached
from lightning_jd.engines import NamedParameters, Objectives, Select


class WholeRows(Rows):
    """What rows that are held, and rows that can be had from a graph, have in common.

    Args:
        named: The parameters; the same for all micro-batches.
        select: Which of them are aggregated, see :func:`lightning_jd.engines.select`.
        nonfinite: ``"raise"``, or ``"skip"`` to leave out objectives whose loss or gradient is NaN
            or infinite.
        pool: The processes; all of them by default.
    """

    def __init__(
        self,
        named: NamedParameters,
        *,
        select: Select = "all",
        nonfinite: Nonfinite = "raise",
        pool: Pool | None = None,
    ) -> None:
        super().__init__(named, pool or Pool(named[0][1].device), can_skip=nonfinite == "raise")
        self._which, self._nonfinite = select, nonfinite
        self.skips = nonfinite == "skip"
        self._selection = PooledSelection(named, select)
        self._losses: list[Tensor] = []
        self._bad: tuple[str, ...] = ()  # losses of this process that are not finite
        # Alone on a device, nothing is looked at before the end of the step, and then at once.
        self._looks_at_once = self.skips or self.pool.size > 1 or not _on_device(named)
        self._loss_names: list[str] = []
        self._agreed: tuple[int, ...] = ()  # stands for what all processes have agreed on

    def _note(self, objectives: Objectives) -> Objectives | None:
        """Remember a micro-batch, and return those of its losses that are finite, if there are."""
        self._micro_batches += 1
        self._selection.add(objectives)
        self._losses.append(objectives.values())
        self.has_values = self.has_values and objectives.has_values
        self._loss_names += objectives.names
        bad = objectives.nonfinite() if self._looks_at_once else ()
        self._bad += bad
        return without(objectives, bad) if bad or not objectives.m else objectives

    @abstractmethod
    def _description(self) -> Description:
        """What to tell the other processes about the rows of this one."""

    @abstractmethod
    def _own_values(self) -> list[Tensor]:
        """The losses of the rows of this process, as vectors in the order of the rows."""

    @abstractmethod
    def _own_gradients(self, named: NamedParameters, weights: Tensor) -> Gradients:
        """Combine the rows of this process, with one weight each."""

    def _begin(self) -> None:
        """Compute what will be needed, if this process is like the others, before they answer."""

    @override
    def agree(self, *, exactly: bool, gramian_is_next: bool) -> None:
        count = sum(map(len, self._losses))
        own = (self._selection.seen, self._bad, count, self._description())
        told = self.pool.gather(own, self._begin if gramian_is_next else None)
        self._agreed = self.pool.agreed
        self._selection.hear(seen for seen, *_ in told)
        self.skipped = tuple(name for _, names, _, _ in told for name in names)
        if self.skipped and self._nonfinite == "raise":
            raise self.losses_error(self.skipped, sum(number for _, _, number, _ in told))
        self.layout = Layout.of(tuple(description for *_, description in told))
        self.selected, self.plain = self._selection.selected, self._selection.plain
        if self.layout.m and not self._selection.reached:
            raise nothing_reached(len(self.named))

    @override
    def values(self, *, wanted: bool) -> Tensor | None:
        if not wanted:
            return None
        like = self.like()
        own = torch.cat([like, *(values.to(like) for values in self._own_values())])
        return self.pool.sum(self.layout.placed(own, self.pool.rank), "losses")

    @override
    def combine(self, named: NamedParameters, weights: Tensor, delivery: Delivery) -> Gradients:
        return self._own_gradients(named, self._own_weights(weights, delivery))

    def _own_weights(self, weights: Tensor, delivery: Delivery) -> Tensor:
        """Those of the rows of this process."""
        return delivery.factor(self.pool) * self.layout.own_weights(weights, self.pool.rank)

    @override
    def delivered(self, own: Gradients, complete: Gradients, delivery: Delivery) -> Gradients:
        deferred = {name for names, _ in self.deferred for name in names}
        return delivered(self.pool, self._selection, own, complete, delivery, deferred)

    def _spoilt(self, G: Tensor) -> Tensor:
        """The Gramian, in which a loss that nobody has looked at spoils its row if not finite."""
        if self._looks_at_once or not len(G):
            return G
        losses = torch.cat([values.to(G) for values in self._own_values()])
        G.diagonal().add_(self.layout.placed(0 * losses, self.pool.rank))
        return G

    def _check_losses(self) -> None:
        """Raise if a loss that nobody has looked at is NaN or infinite."""
        if self._looks_at_once:
            return
        finite = torch.isfinite(torch.cat(self._losses)).tolist()
        bad = [name for name, fine in zip(self._loss_names, finite, strict=True) if not fine]
        if bad:
            raise self.losses_error(bad, len(finite))

    @override
    def shown(self) -> Tensor:
        return torch.cat([self.like(), *self._losses])


def _on_device(named: NamedParameters) -> bool:
    return named[0][1].device.type != "cpu"


def without(objectives: Objectives, names: Sequence[str]) -> Objectives | None:
    """The objectives that are not named; ``None`` if none is left.

    Example:
        >>> objectives = Objectives.of(torch.ones(3, requires_grad=True) * 2)
        >>> without(objectives, ["1"]).names
        ('0', '2')
    """
    kept = [i for i, name in enumerate(objectives.names) if name not in names]
    if not kept:
        return None
    remaining = tuple(objectives.names[i] for i in kept)
    known = None if objectives.known is None else objectives.known[kept]
    if isinstance(objectives.losses, Tensor):
        # A matrix with holes is no matrix: its entries become a list of rows.
        kind = "instances" if objectives.kind == "instances_tasks" else objectives.kind
        with torch.enable_grad():
            losses = objectives.losses.reshape(-1)[kept]
        return Objectives(remaining, kind, losses, objectives.total, known)
    terms = tuple(objectives.losses[i] for i in kept)
    return Objectives(remaining, objectives.kind, terms, objectives.total, known)

"""Rows of a batch that comes in micro-batches, stored until the last of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.core.processes._columns import add_by_rows, all_at_first
from lightning_jd.core.processes._delivery import Gradients
from lightning_jd.core.processes._layout import LISTED, Description, kind_of
from lightning_jd.core.processes._pool import Pool
from lightning_jd.core.rows._base import Nonfinite, Rows, columns_of, per_parameter
from lightning_jd.engines import (
    NamedParameters,
    Objectives,
    Select,
    column_count,
    jacobian,
    jacobian_with_reasons,
)
from lightning_jd.errors import GraphError


class AccumulatedRows(Rows):
    """Adds up the rows of tasks (and ranks) and lists the rows of instances.

    Tasks are means over their data, so the row of a task is the mean of its rows in all
    micro-batches that have it. Instances are the data: their rows are put one below the other. So a
    process stores (m, n) numbers.

    Arguments are those of :class:`Rows`.

    Example:
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> rows = AccumulatedRows([("x", x)])
        >>> for losses in (x * x, 3 * x[:1]):  # three instances
        ...     rows.add(Objectives.of(losses))
        >>> rows.agree(exactly=True, gramian_is_next=True)
        >>> rows.jacobian(rows.selected)
        tensor([[2., 0.],
                [0., 4.],
                [3., 0.]])
    """

    def __init__(
        self,
        named: NamedParameters,
        *,
        select: Select = "all",
        nonfinite: Nonfinite = "raise",
        pool: Pool | None = None,
    ) -> None:
        super().__init__(named, pool=pool, select=select, nonfinite=nonfinite)
        self._kinds: set[str] = set()
        self._columns: set[int] = set()  # number of tasks per instance, where that is known
        columns = sum(column_count(tensor) for _, tensor in named)
        self._store = Store(self.like().new_zeros(0, columns))
        self._holes = False
        self._loss_names: list[tuple[str, ...]] = []

    @override
    def add(self, objectives: Objectives, *, scale: float | Tensor = 1.0) -> None:
        self._loss_names.append(objectives.names)
        if (finite := self._note(objectives)) is None:
            return
        J = self._rows_of(finite, scale)
        kinds, columns = kind_of(objectives)
        self._holes = self._holes or objectives.m > finite.m
        self._kinds.update(kinds)
        self._columns.update(columns)
        self._store.add(kinds[0], finite.names, J, finite.values())

    @override
    def agree(self, *, exactly: bool, gramian_is_next: bool) -> None:
        super().agree(exactly=exactly, gramian_is_next=gramian_is_next)
        selected = {name for name, _ in self.selected}
        self.paths = dict.fromkeys((name for name, _ in self.selected), "jacobian")
        self.slow = {name: why for name, why in self.slow.items() if name in selected}

    @override
    def gramian(self, named: NamedParameters) -> Tensor:
        G = self.like().new_zeros(self.layout.m, self.layout.m)
        add_by_rows(G, self.pool, self.layout, self._matrix(named).to(G))
        self._add_losses(G.diagonal())
        return self.pool.sum(G, "gramian")

    @override
    def squared_norms(self, named: NamedParameters) -> Tensor:
        if self.pool.size > 1 and not self.layout.is_union:  # a row has parts on several processes
            return super().squared_norms(named)
        norms = self._matrix(named).norm(dim=1).to(self.like())
        placed = self.layout.placed(norms, self.pool.rank)
        self._add_losses(placed)
        return self.pool.sum(placed, "gramian").square()

    @override
    def jacobian(self, named: NamedParameters) -> Tensor:
        return all_at_first(self.pool, self.layout, self._matrix(named).to(self.like()))

    @override
    def features_gramian(self, features: str | Tensor | None) -> Tensor:
        raise GraphError(
            "Weights from features must have the graph of the whole step, got rows that were kept "
            "of it. Set accumulation='batch' and nonfinite='raise'."
        )

    @override
    def finite_only(self, finite: Sequence[bool]) -> Rows:
        bad = self._names(finite)
        if self._nonfinite == "raise":
            names = [name for some in self._loss_names for name in some]
            values = torch.cat(self._losses).tolist()
            if found := [n for n, value in zip(names, values, strict=True) if not isfinite(value)]:
                raise self.losses_error(found, len(values))
            raise self.gradients_error(bad)
        self.skipped += tuple(bad)
        own = self.layout.rows[self.pool.rank].where
        self._store.keep([k for k, i in enumerate(own) if finite[i]])
        self.layout = self.layout.without({i for i, fine in enumerate(finite) if not fine})
        return self

    @override
    def _description(self) -> Description:
        return Description(
            kinds=tuple(sorted(self._kinds)),
            columns=tuple(sorted(self._columns)),
            tasks=tuple((name, count) for name, (_, count) in self._store.sums.items()),
            listed=self._store.listed,
            holes=self._holes,
        )

    @override
    def _own_values(self) -> list[Tensor]:
        return self._store.losses()

    @override
    def _own_gradients(self, named: NamedParameters, weights: Tensor) -> Gradients:
        J = self._matrix(named)
        if len(J) == 1:  # the row of a rank becomes its gradient: it is asked for once
            return per_parameter(J[0].mul_(weights.to(J)[0]), named)
        return per_parameter(weights.to(J) @ J, named)

    def _rows_of(self, objectives: Objectives, scale: float | Tensor) -> Tensor:
        J, slow = jacobian_with_reasons(objectives, self.named, scale=scale)
        self.slow |= slow
        if objectives.m == 1 or not self._checks_losses or bool(torch.isfinite(J).all()):
            return J
        # Rows that are computed together spoil one another (zero times infinity is not a number).
        return jacobian(objectives, self.named, scale=scale, chunk=1)

    def _matrix(self, named: NamedParameters) -> Tensor:
        """The columns of some parameters, shape (rows of this process, their entries)."""
        return columns_of(self._store.rows(), self.named, named)

    def _add_losses(self, diagonal: Tensor) -> None:
        """Add 0 * loss to a diagonal, so that an unchecked NaN loss shows up in the Gramian."""
        if self._checks_losses or not len(diagonal):
            return
        losses = torch.cat([values.to(diagonal) for values in self._own_values()])
        diagonal += self.layout.placed(0 * losses, self.pool.rank)


class Store:
    """Adds up the rows of tasks (and ranks) and lists the rows of instances.

    ``empty`` is no row at all, shape (0, n); ``sums`` has the sum and the number of rows by task.
    """

    def __init__(self, empty: Tensor) -> None:
        self._empty = empty
        self.sums: dict[str, tuple[Tensor, int]] = {}
        self._lists: list[Tensor] = []
        self._listed_losses: list[Tensor] = []  # of the rows in the lists, or ...
        self._summed_losses: dict[str, Tensor] = {}  # ... the sums that belong to the sums

    def add(self, kind: str, names: Sequence[str], J: Tensor, losses: Tensor) -> None:
        """Take the rows of one micro-batch, shape (m, n), and their losses, shape (m,)."""
        if kind in LISTED:
            self._lists.append(J)
            self._listed_losses.append(losses)
            return
        for name, row, loss in zip(names, J, losses, strict=True):
            total, count = self.sums.get(name, (None, 0))
            self.sums[name] = (row if total is None else total + row, count + 1)
            self._summed_losses[name] = loss + self._summed_losses.get(name, 0)

    @property
    def listed(self) -> int:
        """The number of rows in the lists."""
        return sum(map(len, self._lists))

    def losses(self, *, mean: bool = False) -> list[Tensor]:
        """The losses of all rows, as vectors in their order; of tasks, sums or means."""
        if not self.sums:
            return self._listed_losses
        pairs = [(self._summed_losses[name], count) for name, (_, count) in self.sums.items()]
        return [torch.stack([total / count if mean else total for total, count in pairs])]

    def rows(self, *, mean: bool = False) -> Tensor:
        """All rows as one matrix, put together once; of tasks, sums or means."""
        if self.sums:
            found = [total / count if mean else total for total, count in self.sums.values()]
            return torch.stack(found) if len(found) > 1 else found[0].unsqueeze(0)
        if len(self._lists) != 1:
            self._lists = [torch.cat([self._empty, *self._lists])]
        return self._lists[0]

    def keep(self, positions: Sequence[int]) -> None:
        """Forget all rows but these; listed rows come in this order."""
        J = self.rows()[list(positions)]
        if self.sums:
            names = [name for k, name in enumerate(self.sums) if k in positions]
            counts = [self.sums[name][1] for name in names]
            self.sums = dict(zip(names, zip(J, counts, strict=True), strict=True))
        else:
            self._lists = [J]
            self._listed_losses = [torch.cat(self._listed_losses)[list(positions)]]

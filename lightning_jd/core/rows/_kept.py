"""Rows of one process whose batch comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.core.processes._exchange import add_by_rows
from lightning_jd.core.processes._layout import LISTED, Description, Layout, kind_of
from lightning_jd.core.processes._pool import Pool
from lightning_jd.core.rows._base import LocalRows, columns_of, per_parameter
from lightning_jd.engines import NamedParameters, Objectives, Slow, column_count


class KeptRows(LocalRows):
    """Adds up the rows of tasks (and ranks) and lists the rows of instances.

    Tasks are means over their data, so the row of a task is the mean of its rows in all pieces that
    have it. Instances are the data: their rows are put one below the other.

    Args:
        named: All parameters, whose entries are the columns.

    Example:
        >>> x = torch.ones(1, requires_grad=True)
        >>> kept = KeptRows([("x", x)])
        >>> kept.add(Objectives.of({"a": x[0], "b": x[0]}), torch.tensor([[2.0], [5.0]]))
        >>> kept.add(Objectives.of({"a": x[0]}), torch.tensor([[4.0]]))
        >>> kept.description().tasks, kept.matrix()
        ((('a', 2), ('b', 1)), tensor([[6.],
                [5.]]))
    """

    def __init__(self, named: NamedParameters) -> None:
        self._named = named
        self._kinds: set[str] = set()
        self._columns: set[int] = set()  # number of tasks per instance, where that is known
        self._sums: dict[str, tuple[Tensor, int]] = {}  # sum of the rows, number of pieces
        self._lists: list[Tensor] = []
        self._losses: list[Tensor] = []  # of the rows in the lists, or ...
        self._loss_of: dict[str, Tensor] = {}  # ... the sums that belong to the sums
        self._holes = False
        self.slow: dict[str, Slow] = {}

    def add(self, objectives: Objectives, J: Tensor, of: Objectives | None = None) -> None:
        """Keep the rows of one piece.

        Args:
            objectives: Their losses.
            J: The rows, shape (m, n).
            of: All losses of the piece, where some were left out.
        """
        kinds, columns = kind_of(of or objectives)
        self._holes = self._holes or (of is not None and of.m > objectives.m)
        self._kinds.update(kinds)
        self._columns.update(columns)
        if kinds[0] in LISTED:
            self._lists.append(J)
            self._losses.append(objectives.values())
            return
        for name, row, loss in zip(objectives.names, J, objectives.values(), strict=True):
            kept, count = self._sums.get(name, (None, 0))
            self._sums[name] = (row if kept is None else kept + row, count + 1)
            self._loss_of[name] = loss + self._loss_of.get(name, 0)

    @override
    def description(self) -> Description:
        return Description(
            kinds=tuple(sorted(self._kinds)),
            columns=tuple(sorted(self._columns)),
            tasks=tuple((name, count) for name, (_, count) in self._sums.items()),
            listed=sum(map(len, self._lists)),
            holes=self._holes,
        )

    def matrix(self, named: NamedParameters | None = None) -> Tensor:
        """The sums and the listed rows, or the columns of some parameters.

        Returns:
            Shape (rows of this process, entries of the parameters).
        """
        J = self._joined()
        if named is None or len(named) == len(self._named):
            return J
        return columns_of(J, self._named, named)

    def keep_only(self, positions: Sequence[int]) -> None:
        """Forget all rows but these."""
        J = self._joined()[list(positions)]
        if self._sums:
            names = [name for k, name in enumerate(self._sums) if k in positions]
            counts = [self._sums[name][1] for name in names]
            self._sums = dict(zip(names, zip(J, counts, strict=True), strict=True))
        else:
            self._lists = [J]
            self._losses = [torch.cat(self._losses)[list(positions)]]

    @override
    def add_products(self, G: Tensor, pool: Pool, layout: Layout, named: NamedParameters) -> None:
        add_by_rows(G, pool, layout, [self.matrix(named).to(G)])

    @override
    def gradients(self, named: NamedParameters, weights: Tensor) -> dict[str, Tensor]:
        J = self.matrix(named)
        return per_parameter(weights.to(J) @ J, named)

    @override
    def values(self) -> list[Tensor]:
        if self._sums:
            return [torch.stack([self._loss_of[name] for name in self._sums])]
        return self._losses

    @property
    @override
    def paths(self) -> dict[str, str]:
        return {name: "jacobian" for name, _ in self._named}

    def _joined(self) -> Tensor:
        """All rows as one matrix, put together once."""
        if len(self._lists) == 1 and not self._sums:
            return self._lists[0]
        if self._sums:
            first, *others = [row for row, _ in self._sums.values()]
            return torch.stack([first, *others]) if others else first.unsqueeze(0)
        wide = any(tensor.dtype.to_real() == torch.float64 for _, tensor in self._named)
        columns = sum(column_count(tensor) for _, tensor in self._named)
        device = self._named[0][1].device
        dtype = torch.float64 if wide else torch.float32
        empty = torch.zeros((0, columns), dtype=dtype, device=device)
        self._lists = [torch.cat([empty, *self._lists])]
        return self._lists[0]

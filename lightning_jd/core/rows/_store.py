"""Rows of micro-batches and their losses, held until the last of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_jd.core.processes._layout import LISTED


class Store:
    """Adds up the rows of tasks (and ranks) and lists the rows of instances.

    Args:
        empty: No row at all, shape (0, n).

    Attributes:
        sums: Name of a task to the sum of its rows, and how many there were.
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
        """Forget all rows but these."""
        J = self.rows()[list(positions)]
        if self.sums:
            names = [name for k, name in enumerate(self.sums) if k in positions]
            counts = [self.sums[name][1] for name in names]
            self.sums = dict(zip(names, zip(J, counts, strict=True), strict=True))
        else:
            self._lists = [J]
            self._listed_losses = [torch.cat(self._listed_losses)[list(positions)]]

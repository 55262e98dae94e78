"""Rows of the Jacobian of one step whose batch comes in pieces."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_jd.core._pool import Pool
from lightning_jd.engines import Objectives
from lightning_jd.errors import ArgumentError


class KeptRows:
    """Adds up the rows of tasks and lists the rows of instances.

    Tasks are means over their data, so the row of a task is the mean of its rows in all pieces that
    have it. Instances are the data: their rows are put one below the other.

    Example:
        >>> loss = torch.ones((), requires_grad=True)
        >>> kept = KeptRows()
        >>> kept.add(Objectives.of({"a": loss, "b": loss}), torch.tensor([[2.0], [5.0]]))
        >>> kept.add(Objectives.of({"a": loss}), torch.tensor([[4.0]]))
        >>> kept.matrix(Pool())
        (('a', 'b'), tensor([[3.],
                [5.]]))
    """

    def __init__(self) -> None:
        self._kinds: set[str] = set()
        self._columns: set[int] = set()  # number of tasks per instance, where that is known
        self._sums: dict[str, tuple[Tensor, int]] = {}  # sum of the rows, number of pieces
        self._lists: list[Tensor] = []

    def add(self, objectives: Objectives, J: Tensor) -> None:
        """Keep the rows J, shape (m, n), of one piece."""
        self._kinds.add(objectives.kind)
        if objectives.kind != "tasks":
            self._lists.append(J)
            if objectives.kind == "instances_tasks":
                self._columns.add(objectives.outputs[0].shape[1])
            return
        for name, row in zip(objectives.names, J, strict=True):
            kept, count = self._sums.get(name, (torch.zeros_like(row), 0))
            self._sums[name] = (kept + row, count + 1)

    def matrix(self, pool: Pool, empty: Tensor | None = None) -> tuple[tuple[str, ...], Tensor]:
        """The names of all objectives and their Jacobian (m, n), equal on all processes.

        Args:
            pool: The processes.
            empty: A matrix of shape (0, n), which tells processes without a row what n is.

        Raises:
            ArgumentError: If the pieces are of different kinds.
        """
        for kinds, columns in pool.gather((self._kinds, self._columns)):
            self._kinds |= kinds
            self._columns |= columns
        if len(self._kinds) > 1 or len(self._columns) > 1:
            raise ArgumentError(
                "Losses must be of one kind in all micro-batches of a step and in all processes, "
                f"got {' and '.join(sorted(self._kinds))} with {sorted(self._columns)} columns."
            )
        if "tasks" in self._kinds:
            return self._means(pool, empty)
        J = pool.union(torch.cat([*([] if empty is None else [empty]), *self._lists]))
        return tuple(map(str, range(len(J)))), J

    def plain_weight(self, m: int) -> float:
        """The weight of every row in ordinary training: sum over tasks, mean over instances."""
        return 1.0 if "tasks" in self._kinds else max(self._columns, default=1) / max(m, 1)

    def _means(self, pool: Pool, empty: Tensor | None) -> tuple[tuple[str, ...], Tensor]:
        # All names, in the order of the first process that has them.
        names = tuple(dict.fromkeys(name for mine in pool.gather([*self._sums]) for name in mine))
        like = empty if empty is not None else next(iter(self._sums.values()))[0][None]
        sums, counts = like.new_zeros(len(names), like.shape[1]), like.new_zeros(len(names), 1)
        for i, name in enumerate(names):
            if name in self._sums:
                sums[i], counts[i] = self._sums[name]
        return names, pool.sum(sums) / pool.sum(counts)

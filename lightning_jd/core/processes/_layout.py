"""Which rows of which process make up which row of the Jacobian of all processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_jd.engines import Objectives
from lightning_jd.errors import ArgumentError

#: Kinds of rows that stand for themselves; those of tasks and ranks have names and are averaged.
LISTED = ("instances", "instances_tasks")


class Description(NamedTuple):
    """The description of the rows of one process, which the others receive.

    Attributes:
        kinds: The kinds of its losses: one, or none if there is no row.
        columns: The number of tasks per instance, where that is known.
        tasks: Name and number of micro-batches of each row that is a sum over micro-batches.
        listed: How many rows there are that stand for themselves.
        holes: Whether rows were left out, so that those of a matrix of losses fill no matrix.
    """

    kinds: tuple[str, ...]
    columns: tuple[int, ...]
    tasks: tuple[tuple[str, int], ...]
    listed: int
    holes: bool = False


def kind_of(objectives: Objectives) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The kind of some losses, and the number of tasks per instance, as in a description."""
    losses = objectives.losses
    if objectives.kind == "instances_tasks" and isinstance(losses, Tensor):
        return (objectives.kind,), (losses.shape[1],)
    return (objectives.kind,), ()


class OwnRows(NamedTuple):
    """The rows of one process: where each of them goes, and the factor that it goes there with."""

    where: tuple[int, ...]
    share: tuple[float, ...]


@lru_cache(maxsize=64)
def _all_rows(m: int) -> OwnRows:
    return OwnRows(tuple(range(m)), (1.0,) * m)


def listed_names(m: int, columns: int) -> tuple[str, ...]:
    """The names of m listed rows, ``"instance/task"`` if the number of tasks is known (not 0)."""
    return tuple(f"{i // columns}/{i % columns}" if columns else str(i) for i in range(m))


@dataclass(frozen=True)
class Layout:
    r"""The matrices :math:`S_r` in :math:`J = \sum_r S_r J_r`, over the processes r.

    The row of a task is the mean of its rows wherever there are some: their entries of S are one
    over their number. The rows of instances are put one below the other: S has ones. So all that
    follows, Gramian and gradient, is the same for every kind of rows.

    Attributes:
        kind: What a row is.
        names: The name of each row of J.
        columns: The number of tasks per instance, where that is known.
        rows: The rows of each process.

    Example:
        >>> first = Description(("tasks",), (), (("a", 1), ("b", 1)), 0)
        >>> second = Description(("tasks",), (), (("b", 1),), 0)
        >>> layout = Layout.of((first, second))
        >>> layout.names, layout.rows[1]
        (('a', 'b'), OwnRows(where=(1,), share=(0.5,)))
    """

    kind: str
    names: tuple[str, ...]
    columns: int
    rows: tuple[OwnRows, ...]

    @staticmethod
    @lru_cache(maxsize=64)  # most steps are like the one before
    def of(descriptions: tuple[Description, ...]) -> Layout:
        """Put together what all processes have.

        Raises:
            ArgumentError: If their rows are of different kinds.
        """
        kinds = sorted({kind for each in descriptions for kind in each.kinds})
        columns = sorted({count for each in descriptions for count in each.columns})
        if len(kinds) > 1 or len(columns) > 1:
            raise ArgumentError(
                "Losses must be of one kind in all micro-batches of a step and in all processes, "
                f"got {' and '.join(kinds)}"
                + (f" with {' and '.join(map(str, columns))} columns." if columns else ".")
            )
        kind = kinds[0] if kinds else "tasks"
        if kind in LISTED:
            m = sum(each.listed for each in descriptions)
            k = columns[0] if columns and not any(each.holes for each in descriptions) else 0
            names = listed_names(m, k)
            ends = torch.tensor([each.listed for each in descriptions]).cumsum(0).tolist()
            rows = tuple(
                OwnRows(tuple(range(end - each.listed, end)), (1.0,) * each.listed)
                for each, end in zip(descriptions, ends, strict=True)
            )
        else:
            batches: Counter[str] = Counter()  # in the order of the first process that has a name
            for each in descriptions:
                batches.update(dict(each.tasks))
            names = tuple(batches)
            position = {name: i for i, name in enumerate(names)}
            rows = tuple(
                OwnRows(
                    tuple(position[name] for name, _ in each.tasks),
                    tuple(1 / batches[name] for name, _ in each.tasks),
                )
                for each in descriptions
            )
        return Layout(kind, names, max(columns, default=1), rows)

    @classmethod
    def of_one_process(cls, objectives: Objectives) -> Layout:
        """That of one process and one micro-batch, whose rows are J as they are."""
        losses, is_matrix = objectives.losses, objectives.kind == "instances_tasks"
        columns = losses.shape[1] if is_matrix and isinstance(losses, Tensor) else 1
        m = objectives.m
        return cls(objectives.kind, objectives.names, columns, (_all_rows(m),))

    @property
    def m(self) -> int:
        """The number of rows of J."""
        return len(self.names)

    @property
    def counts(self) -> list[int]:
        """How many rows each process has."""
        return [len(rows.where) for rows in self.rows]

    @cached_property
    def is_union(self) -> bool:
        """Whether J is nothing but the rows of one process below those of the other."""
        where = [i for rows in self.rows for i in rows.where]
        return where == list(range(self.m)) and {s for rows in self.rows for s in rows.share} <= {1}

    @property
    def plain_weight(self) -> float:
        """The weight of a row in ordinary training: sum over tasks, mean over all else."""
        return 1.0 if self.kind == "tasks" else self.columns / max(self.m, 1)

    def own_weights(self, weights: Tensor, rank: int) -> Tensor:
        r""":math:`S_r^\top w`: the weights of the rows of one process."""
        where, share = self.rows[rank]
        if self.rows[rank] == _all_rows(self.m):
            return weights
        return weights[_on(weights, where)] * _factors(weights, share)

    def placed(self, values: Tensor, rank: int) -> Tensor:
        r""":math:`S_r v`: one number per row of J from one per row of a process, to be summed."""
        where, share = self.rows[rank]
        placed = values.new_zeros(self.m)
        return placed.index_add(0, _on(values, where), values * _factors(values, share))

    def assembled(self, stacked: Tensor) -> Tensor:
        """J from the rows of all processes, one below the other, or some columns of both."""
        if self.is_union:
            return stacked
        J = stacked.new_zeros(self.m, stacked.shape[1])
        for (where, share), part in zip(self.rows, stacked.split(self.counts), strict=True):
            J[_on(J, where)] += part * _factors(part, share).unsqueeze(1)
        return J

    def add_block(self, G: Tensor, block: Tensor, first: int, second: int) -> None:
        r"""Add :math:`S_r B S_s^\top` to a matrix, and its transpose if r is not s."""
        (rows, left), (columns, right) = self.rows[first], self.rows[second]
        block = block * torch.outer(_factors(block, left), _factors(block, right))
        i, j = _on(G, rows), _on(G, columns)
        G[i.unsqueeze(1), j] += block
        if first != second:
            G[j.unsqueeze(1), i] += block.T

    def share(self, row: int, rank: int) -> float:
        """The factor of a row of J on one process; 0 if that does not have it."""
        return dict(zip(*self.rows[rank], strict=True)).get(row, 0.0)

    def without(self, dropped: Collection[int]) -> Layout:
        """The same with some rows of J left out; the rows of the processes must follow."""
        kept = [i for i in range(self.m) if i not in dropped]
        new = {i: position for position, i in enumerate(kept)}
        rows = tuple(
            OwnRows(
                tuple(new[i] for i in rows.where if i in new),
                tuple(share for i, share in zip(*rows, strict=True) if i in new),
            )
            for rows in self.rows
        )
        return Layout(self.kind, tuple(self.names[i] for i in kept), self.columns, rows)


def _on(like: Tensor, positions: Sequence[int]) -> Tensor:
    """Positions on the device of a tensor; the host does not wait for the copy."""
    return torch.tensor(positions, dtype=torch.long).to(like.device, non_blocking=True)


def _factors(like: Tensor, numbers: Sequence[float]) -> Tensor:
    """Numbers of the type of a tensor, on its device; the host does not wait for the copy."""
    return torch.tensor(numbers, dtype=like.dtype).to(like.device, non_blocking=True)

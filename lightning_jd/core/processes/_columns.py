"""Some columns of the rows of all processes at a time, of which each process multiplies a part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.core.processes._layout import Layout
from lightning_jd.core.processes._pool import Pool
from lightning_jd.engines.tape import Contribution

#: Columns that are multiplied at a time: kernels for few rows add all columns up one by one, which
#: loses digits.
_AT_ONCE = 1 << 12
_FEW_ROWS = 32


class Columns:
    """A bucket of columns.

    Args:
        own: The rows of this process, shape (rows, columns).
        counts: How many rows each process has.
        pool: The processes.
        layout: Whose rows go where.
    """

    def __init__(self, own: Tensor, counts: Sequence[int], pool: Pool, layout: Layout) -> None:
        self._counts, self._pool, self._layout = counts, pool, layout
        self._widths = even(own.shape[1], pool.size)
        self._parts = own.split(self._widths, dim=1)

    def leaving(self, target: int) -> Tensor:
        """What this process sends to another one, flat."""
        part: Tensor = self._parts[target]
        return part.reshape(-1)

    def size(self, source: int) -> int:
        """How many numbers another process sends to this one."""
        rank = self._pool.rank
        return 0 if source == rank else self._counts[source] * self._widths[rank]

    def add(self, G: Tensor, arrived: Sequence[Tensor]) -> None:
        """Add the products of the columns of this process.

        Args:
            G: Accumulator, updated in place.
            arrived: What each process has sent, flat; nothing from this one.
        """
        rank, width = self._pool.rank, self._widths[self._pool.rank]
        own = enumerate(zip(arrived, self._counts, strict=True))
        every = [self._parts[r] if r == rank else part.view(m, width) for r, (part, m) in own]
        self._add(G, torch.cat(every))

    def _add(self, G: Tensor, stacked: Tensor) -> None:
        G += products(self._layout.assembled(stacked))


class ColumnsAlone(Columns):
    """Columns of parameters that one row of J reaches, and no other one, as those of heads.

    Args:
        own: That row, as far as this process has it, shape (1, columns).
        pool: The processes.
        layout: Whose rows go where.
        owners: The row of J that each run of columns belongs to, and the length of the run.
    """

    def __init__(
        self, own: Tensor, pool: Pool, layout: Layout, owners: Sequence[tuple[int, int]]
    ) -> None:
        super().__init__(own, [1] * pool.size, pool, layout)
        self._owners = owners

    @override
    def _add(self, G: Tensor, stacked: Tensor) -> None:
        rank, begin = self._pool.rank, 0
        first = sum(self._widths[:rank])  # of the columns of this process
        for row, length in self._owners:
            run = stacked[:, max(0, begin - first) : max(0, begin + length - first)]
            begin += length
            shares = run.new_tensor([self._layout.share(row, r) for r in range(self._pool.size)])
            G[row, row] += (shares @ run).square().sum()


def columns_of_rows(
    blocks: Iterable[Tensor], pool: Pool, layout: Layout, width: int
) -> Iterator[Columns]:
    """Buckets of the rows of this process, which come in blocks from left to right."""
    for bucket in buckets(blocks, width):
        yield Columns(bucket, layout.counts, pool, layout)


def columns_alone(
    rows: Mapping[int, str],
    sizes: Sequence[int],
    parts: Sequence[Sequence[Contribution]],
    pool: Pool,
    layout: Layout,
    like: Tensor,
    width: int,
) -> Iterator[Columns]:
    """Buckets of parameters that one row reaches.

    Args:
        rows: Their positions, and the name of the row.
        sizes: How many entries each parameter has.
        parts: What this process holds of all parameters, by position.
        pool: The processes.
        layout: Whose rows go where.
        like: A tensor of the type of the Gramian.
        width: How many columns a bucket has.
    """
    blocks = (_row_alone(parts[k], sizes[k], like) for k in rows)
    left = [(layout.names.index(name), sizes[k]) for k, name in rows.items()]
    for bucket in buckets(blocks, width):
        owners, count = [], bucket.shape[1]
        while count:
            row, length = left.pop(0)
            owners.append((row, min(length, count)))
            if length > count:
                left.insert(0, (row, length - count))
            count -= min(length, count)
        yield ColumnsAlone(bucket, pool, layout, owners)


def _row_alone(parts: Sequence[Contribution], size: int, like: Tensor) -> Tensor:
    alone = parts[0].alone() if parts else None
    return like.new_zeros(1, size) if alone is None else alone[1].rows().to(like)


def products(rows: Tensor) -> Tensor:
    """Inner products of rows, shape (m, n) -> (m, m)."""
    m, n = rows.shape
    if m >= _FEW_ROWS or n <= _AT_ONCE:
        return rows @ rows.T
    whole = n - n % _AT_ONCE
    parts, rest = rows[:, :whole].unflatten(1, (-1, _AT_ONCE)).transpose(0, 1), rows[:, whole:]
    return torch.bmm(parts, parts.transpose(1, 2)).sum(dim=0).addmm_(rest, rest.T)


def buckets(blocks: Iterable[Tensor], width: int) -> Iterator[Tensor]:
    """Blocks of any width in, blocks of equal width out (the last may have fewer columns)."""
    waiting: list[Tensor] = []
    count = 0
    for block in blocks:
        while block.shape[1]:
            part, block = block[:, : width - count], block[:, width - count :]
            waiting.append(part)
            count += part.shape[1]
            if count == width:
                yield _side_by_side(waiting)
                waiting, count = [], 0
    if waiting:
        yield _side_by_side(waiting)


def _side_by_side(blocks: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(blocks), dim=1) if len(blocks) > 1 else blocks[0]


def even(columns: int, processes: int) -> list[int]:
    """How many columns each process gets."""
    each, more = divmod(columns, processes)
    return [each + (rank < more) for rank in range(processes)]

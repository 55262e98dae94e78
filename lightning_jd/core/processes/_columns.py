"""Rows by columns: each process gets some columns of the rows of all processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from lightning_jd.core.processes._layout import Layout
from lightning_jd.core.processes._pool import Pool
from lightning_jd.engines.tape import Contribution
from lightning_jd.engines.tape.contributions import products

#: Bytes of rows, and of factors, that a process sends, and receives, at a time; as much as DDP
#: reduces at a time.
BUCKET_BYTES = 25 << 20


def add_by_rows(G: Tensor, pool: Pool, layout: Layout, rows: Tensor) -> None:
    """Add the products of this process's columns of all rows; summed over processes, that is G."""
    for bucket in rows.split(bucket_width(layout.counts, G), dim=1):
        widths = even(bucket.shape[1], pool.size)
        stacked = pool.exchange(bucket, layout.counts, widths, is_brief=True)
        G += products(layout.assembled(stacked))


def all_at_first(pool: Pool, layout: Layout, rows: Tensor) -> Tensor:
    """The rows of all on the first process, shape (m, columns), and no column elsewhere."""
    parts = []
    for bucket in rows.split(bucket_width(layout.counts, rows), dim=1):
        widths = [bucket.shape[1], *[0] * (pool.size - 1)]
        parts.append(layout.assembled(pool.exchange(bucket, layout.counts, widths)))
    return torch.cat(parts, dim=1)


def blocks_of(
    parts: Sequence[Contribution], m: int, size: int, width: int, like: Tensor
) -> Iterator[Tensor]:
    """The m rows of one parameter with ``size`` entries, about ``width`` columns at a time."""
    if len(parts) == 1:
        yield from (block.to(like) for block in parts[0].blocks(width))
    elif parts:  # each has other entries of the parameter
        yield torch.stack([part.rows() for part in parts]).sum(dim=0).to(like)
    else:
        yield from like.new_zeros(1, 1).expand(m, size).split(width, dim=1)


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
                yield torch.cat(waiting, dim=1) if len(waiting) > 1 else waiting[0]
                waiting, count = [], 0
    if waiting:
        yield torch.cat(waiting, dim=1) if len(waiting) > 1 else waiting[0]


def bucket_width(counts: Sequence[int], like: Tensor) -> int:
    """How many columns a bucket has, so that no process sends or holds more than its bytes."""
    return max(1, BUCKET_BYTES // (like.element_size() * max(1, *counts)))


def even(columns: int, processes: int) -> list[int]:
    """How many columns each process gets."""
    each, more = divmod(columns, processes)
    return [each + (rank < more) for rank in range(processes)]

r"""The Gramian of the rows of all processes, of which no process holds more than a bucket.

With :math:`J = \sum_r S_r J_r` (see :class:`~lightning_jd.core.processes._layout.Layout`), there
are two ways to :math:`G = J J^\top`, and each parameter takes the one that sends less:

- by rows: every process gets some columns of all rows and multiplies these; the sum over processes
  of the products is G. A row travels once.
- by factors: where gradients are sums of outer products of activations and cotangents, these travel
  instead, to half of the other processes; each block :math:`J_r J_s^\top` is formed on one of its
  two processes.

Both go in the same messages, and this process multiplies its own rows while a message is on its
way. Everything here is called by all processes in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import zip_longest

import torch
from torch import Tensor

from lightning_jd.core.processes._columns import (
    Columns,
    buckets,
    columns_alone,
    columns_of_rows,
    even,
    products,
)
from lightning_jd.core.processes._factors import Blocks, Lot, lots, travelling_factors
from lightning_jd.core.processes._forms import Form, rows_alone
from lightning_jd.core.processes._layout import Layout
from lightning_jd.core.processes._pool import Arriving, Pool
from lightning_jd.engines.tape import Contribution, Rows

#: Bytes of rows, and of factors, that a process sends, and receives, at a time; as much as DDP
#: reduces at a time.
BUCKET_BYTES = 25 << 20

#: A contribution, and what to hold in its place: rows that had to be formed.
Formed = tuple[Contribution, list[Contribution]]


def add_by_rows(G: Tensor, pool: Pool, layout: Layout, blocks: Iterable[Tensor]) -> None:
    """Add the products of some columns, as far as this process forms them.

    Args:
        G: Accumulator, updated in place, shape (m, m); its sum over processes is the Gramian.
        pool: The processes.
        layout: Whose rows go where.
        blocks: The rows of this process from left to right, shapes (rows, some columns). Processes
            may cut them in different ways.
    """
    for bucket in buckets(blocks, bucket_width(layout.counts, G)):
        widths = even(bucket.shape[1], pool.size)
        stacked = pool.exchange(bucket, layout.counts, widths, briefly=True)
        G += products(layout.assembled(stacked))


def all_at_first(pool: Pool, layout: Layout, blocks: Iterable[Tensor], like: Tensor) -> Tensor:
    """The Jacobian of all rows on the first process, shape (m, columns), and no column elsewhere.

    Arguments as in :func:`add_by_rows`; ``like`` gives the type.
    """
    pieces = []
    for bucket in buckets(blocks, bucket_width(layout.counts, like)):
        widths = [bucket.shape[1], *[0] * (pool.size - 1)]
        pieces.append(layout.assembled(pool.exchange(bucket, layout.counts, widths)))
    return torch.cat(pieces, dim=1) if pieces else like.new_zeros(layout.m, 0)


def add_contributions(
    G: Tensor,
    pool: Pool,
    layout: Layout,
    sizes: Sequence[int],
    forms: Sequence[Sequence[Form]],
    parts: Sequence[Sequence[Contribution]],
) -> list[Formed]:
    """Add the products of the rows of some parameters, each by the way that sends less.

    Args:
        G: See :func:`add_by_rows`.
        pool: The processes.
        layout: Whose rows go where.
        sizes: How many entries each parameter has.
        forms: How each process holds the rows of each parameter.
        parts: The rows of this process, by parameter, as its forms say; or none at all, and then
            zeros are sent in their place.

    Returns:
        Rows that had to be formed, as far as they are few enough to be held.
    """
    weights = travelling_factors(forms, layout.counts, sizes)
    alone = rows_alone(forms)
    elsewhere = alone.keys() | {place for weight in weights for place in weight.places}
    reached = {k for own in forms for k, form in enumerate(own) if form is not None}
    rest = sorted(reached - elsewhere)
    width, numbers = bucket_width(layout.counts, G), BUCKET_BYTES // G.element_size()
    held: list[Formed] = []
    rows = _rows(parts, rest, sizes, layout.counts[pool.rank], width, G, held)
    blocks = Blocks()
    finish: Callable[[], object] | None = None
    for lot, *columns in zip_longest(
        lots(weights, pool, parts, G, numbers),
        columns_of_rows(rows, pool, layout, width),
        columns_alone(alone, sizes, parts, pool, layout, G, numbers),
    ):
        message = _Message(pool, lot, [some for some in columns if some is not None], G)
        if lot is not None:
            lot.add_own(blocks)
        if finish is not None:
            finish()  # with the message before, while this one is on its way
        finish = partial(message.finish, G, blocks)
    if finish is not None:
        finish()
    blocks.add_to(G, layout, pool.rank)
    return held


class _Message:
    """Factors and rows on their way to all processes, and theirs on the way to this one."""

    def __init__(self, pool: Pool, lot: Lot | None, columns: list[Columns], like: Tensor) -> None:
        self._pool, self._lot, self._columns = pool, lot, columns
        everyone = range(pool.size)
        others = [rank for rank in everyone if rank != pool.rank]
        leaving = [
            {
                "factors": [] if lot is None or rank == pool.rank else lot.leaving(rank),
                "rows": [some.leaving(rank) for some in columns if rank in others],
            }
            for rank in everyone
        ]
        #: How many numbers come from each process: factors, then rows.
        self._sizes = [
            [0 if lot is None else lot.size(rank), *[some.size(rank) for some in columns]]
            for rank in everyone
        ]
        self._arriving: Arriving = pool.send(leaving, [sum(each) for each in self._sizes], like)

    def finish(self, G: Tensor, blocks: Blocks) -> None:
        """Multiply what has arrived."""
        arrived = self._arriving.wait()
        every = [list(part.split(each)) for part, each in zip(arrived, self._sizes, strict=True)]
        for rank, (factors, *_) in enumerate(every):
            if self._lot is not None and rank != self._pool.rank:
                self._lot.add_cross(blocks, rank, factors)
        for k, some in enumerate(self._columns):
            some.add(G, [each[1 + k] for each in every])


def _rows(
    parts: Sequence[Sequence[Contribution]],
    positions: Sequence[int],
    sizes: Sequence[int],
    m: int,
    width: int,
    like: Tensor,
    held: list[Formed],
) -> Iterator[Tensor]:
    """The rows of some parameters from left to right, not many more than ``width`` columns at once.

    Rows that had to be formed save the work of forming the gradient again, if they are held. But
    all rows together are the Jacobian, which nobody wants to hold.
    """
    room = min(sum(sizes) // 3, width)
    whole = [part for k in positions for part in parts[k]]
    singles: dict[int, list[Contribution]] = {k: [] for k in positions}
    for part in whole:
        for single in part.split():
            singles[single.placements[0].parameter].append(single)
    kept: dict[int, Contribution] = {}
    for k, those in singles.items():
        if len(those) == 1 and sizes[k] <= room:
            room -= sizes[k]
            rows = those[0].rows()
            kept[k] = Rows(rows, those[0].placements[0], is_placed=True)
            yield rows.to(like)
        else:
            yield from blocks_of(those, m, sizes[k], width, like)
    for part in whole:
        places = [placement.parameter for placement in part.placements]
        if any(k in kept for k in places):
            by_place = {single.placements[0].parameter: single for single in part.split()}
            held.append((part, [kept.get(k, by_place[k]) for k in places]))


def blocks_of(
    parts: Sequence[Contribution], m: int, size: int, width: int, like: Tensor
) -> Iterator[Tensor]:
    """The rows of one parameter from left to right.

    Args:
        parts: What there is of them, each about this parameter alone.
        m: The number of rows.
        size: How many entries the parameter has.
        width: How many columns there should be at the same time.
        like: A tensor of their type.
    """
    if len(parts) == 1:
        yield from (block.to(like) for block in parts[0].blocks(width))
    elif parts:  # each has other entries of the parameter
        yield torch.stack([part.rows() for part in parts]).sum(dim=0).to(like)
    else:
        yield from like.new_zeros(1, 1).expand(m, size).split(width, dim=1)


def bucket_width(counts: Sequence[int], like: Tensor) -> int:
    """How many columns a bucket has, so that no process sends or holds more bytes than it may.

    Args:
        counts: How many rows each process has.
        like: A tensor of their type.
    """
    return max(1, BUCKET_BYTES // (like.element_size() * max(1, *counts)))

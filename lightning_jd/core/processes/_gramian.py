r"""The Gramian of the rows of all processes, of which no process holds more than a bucket.

With :math:`J = \sum_r S_r J_r` (see :class:`~lightning_jd.core.processes._layout.Layout`), there
are two ways to :math:`G = J J^\top`, and each parameter takes the one that sends less:

- by rows: every process gets some columns of all rows and multiplies these; the sum over processes
  of the products is G. A row travels once.
- by factors: where gradients are sums of outer products of activations and cotangents, these travel
  instead, to half of the other processes; each block :math:`J_r J_s^\top` is formed on one of its
  two processes.

Both go in the same messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_jd.core.processes import _columns
from lightning_jd.core.processes._columns import blocks_of, bucket_width, buckets, even
from lightning_jd.core.processes._formats import (
    FactoredWeight,
    Format,
    factored_weights,
    formats_of,
)
from lightning_jd.core.processes._layout import Layout
from lightning_jd.core.processes._pool import Pool
from lightning_jd.engines.tape import Contribution, Rows
from lightning_jd.engines.tape.contributions import products

#: A contribution, and what to hold in its place: rows that had to be formed.
MaterialisedRows = tuple[Contribution, list[Contribution]]


class LocalParts(NamedTuple):
    """The contributions of one process to the rows of some parameters.

    Attributes:
        names: The parameters.
        sizes: How many entries each of them has.
        parts: The contributions by parameter; one that spans several stands at the first.
        tasks: The names of the rows, if these are tasks.
    """

    names: tuple[str, ...]
    sizes: Sequence[int]
    parts: list[list[Contribution]]
    tasks: tuple[str, ...] = ()

    @property
    def formats(self) -> tuple[Format, ...]:
        """The format of the rows of each parameter."""
        return formats_of(self.parts, self.sizes, self.tasks)


def gramian_of(
    local_parts: Iterable[LocalParts],
    pool: Pool,
    layout: Layout,
    like: Tensor,
    formats: Sequence[Sequence[Format]] = (),
) -> tuple[Tensor, list[MaterialisedRows]]:
    """The Gramian of all rows, equal on all processes, and rows that had to be formed for it.

    Args:
        local_parts: The parts of this process, the same parameters at a time on all processes.
        pool: The processes.
        layout: The rows of all processes.
        like: A tensor of the type of the Gramian.
        formats: Those of all processes, if the roll call has gathered them.
    """
    G = like.new_zeros(layout.m, layout.m)
    held: list[MaterialisedRows] = []
    for local in local_parts if layout.m else ():
        _add(G, pool, layout, local, formats or pool.gather(local.formats), held)
    return pool.sum(G, "gramian"), held


def _add(
    G: Tensor,
    pool: Pool,
    layout: Layout,
    local: LocalParts,
    formats: Sequence[Sequence[Format]],
    held: list[MaterialisedRows],
) -> None:
    """Add the products of the rows of some parameters, as far as this process forms them."""
    weights = list(factored_weights(formats, layout.counts, local.sizes))
    elsewhere = {place for weight in weights for place in weight.formats[0].places}
    reached = {k for own in formats for k, each in enumerate(own) if each is not None}
    blocks = _blocks(local, sorted(reached - elsewhere), layout.counts[pool.rank], G, layout, held)
    for some, rows in zip_longest(
        _messages(weights, _columns.BUCKET_BYTES // G.element_size()),
        buckets(blocks, bucket_width(layout.counts, G)),
    ):
        _exchange(G, pool, layout, local, some or [], G.new_zeros(0, 0) if rows is None else rows)


def _exchange(
    G: Tensor,
    pool: Pool,
    layout: Layout,
    local: LocalParts,
    weights: Sequence[FactoredWeight],
    rows: Tensor,
) -> None:
    """Exchange the factors of some weights and some columns of rows, and add the products."""
    rank, everyone = pool.rank, range(pool.size)
    parts = [next(iter(local.parts[weight.formats[0].places[0]]), None) for weight in weights]
    own = [() if part is None else _factors(part, local, G) for part in parts]
    widths = even(rows.shape[1], pool.size)
    columns = rows.split(widths, dim=1)
    leaving = [
        {
            "factors": [
                tensor
                for weight, tensors in zip(weights, own, strict=True)
                for tensor in tensors
                if weight.goes(rank, target)
            ],
            "rows": [] if target == rank else [columns[target]],
        }
        for target in everyone
    ]
    arriving = [[weight for weight in weights if weight.goes(r, rank)] for r in everyone]
    shapes = [
        [shape for w in some for shape in w.formats[r].shapes] for r, some in enumerate(arriving)
    ]
    counts = [0 if r == rank else count * widths[rank] for r, count in enumerate(layout.counts)]
    sizes = [sum(map(prod, some)) + count for some, count in zip(shapes, counts, strict=True)]
    arrived = pool.send(leaving, sizes, G)
    stacked = []
    for source, numbers in enumerate(arrived):
        *factors, theirs = numbers.split([*map(prod, shapes[source]), counts[source]])
        stacked.append(
            columns[rank] if source == rank else theirs.view(layout.counts[source], widths[rank])
        )
        views = iter([f.view(shape) for f, shape in zip(factors, shapes[source], strict=True)])
        for weight in arriving[source]:
            their = [next(views) for _ in weight.formats[source].shapes]
            k = weights.index(weight)
            if (part := parts[k]) is not None:
                _add_cross(G, layout, rank, source, weight, part, own[k], their)
    for part in parts:
        if part is not None:
            layout.add_block(G, part.gramian().to(G), rank, rank)
    if rows.shape[1]:
        G += products(layout.assembled(torch.cat(stacked)))


def _factors(part: Contribution, local: LocalParts, like: Tensor) -> tuple[Tensor, ...]:
    if local.tasks and (single := part.alone()) is not None:
        return (single[1].rows().to(like).reshape(-1),)
    factors = part.factors()
    assert factors is not None
    return tuple(tensor.to(like) for tensor in factors.tensors())


def _add_cross(
    G: Tensor,
    layout: Layout,
    rank: int,
    source: int,
    weight: FactoredWeight,
    part: Contribution,
    own: Sequence[Tensor],
    theirs: Sequence[Tensor],
) -> None:
    """Add the products of the rows of this process and of another one."""
    key = weight.formats[0].key
    if isinstance(key, tuple) and key[0] == "row":
        i = layout.names.index(key[1])
        G[i, i] += 2 * layout.share(i, rank) * layout.share(i, source) * (own[0] @ theirs[0])
    elif (factors := part.factors()) is not None:
        layout.add_block(G, factors.cross(own, theirs).to(G), rank, source)


def _messages(weights: Iterable[FactoredWeight], numbers: int) -> Iterator[list[FactoredWeight]]:
    """Cut the weights into messages, for which no process sends more than some numbers."""
    message: list[FactoredWeight] = []
    size = 0
    for weight in weights:
        most = max(each.numbers for each in weight.formats) * (len(weight.formats) // 2)
        if message and size + most > numbers:
            yield message
            message, size = [], 0
        message.append(weight)
        size += most
    if message:
        yield message


def _blocks(
    local: LocalParts,
    positions: Sequence[int],
    m: int,
    like: Tensor,
    layout: Layout,
    held: list[MaterialisedRows],
) -> Iterator[Tensor]:
    """The rows of some parameters from left to right, not many more columns at once than a bucket.

    Rows that had to be formed save the work of forming the gradient again, if they are held. But
    all rows together are the Jacobian, which is too large to hold.
    """
    width = bucket_width(layout.counts, like)
    room = min(sum(local.sizes) // 3, width)
    whole = [part for k in positions for part in local.parts[k]]
    singles: dict[int, list[Contribution]] = {k: [] for k in positions}
    for single in [single for part in whole for single in part.split()]:
        singles[single.placements[0].parameter].append(single)
    kept: dict[int, Contribution] = {}
    for k, those in singles.items():
        if len(those) == 1 and local.sizes[k] <= room:
            room -= local.sizes[k]
            rows = those[0].rows()
            kept[k] = Rows(rows, those[0].placements[0], is_placed=True)
            yield rows.to(like)
        else:
            yield from blocks_of(those, m, local.sizes[k], width, like)
    for part in whole:
        places = [placement.parameter for placement in part.placements]
        if any(k in kept for k in places):
            by_place = {single.placements[0].parameter: single for single in part.split()}
            held.append((part, [kept.get(k, by_place[k]) for k in places]))

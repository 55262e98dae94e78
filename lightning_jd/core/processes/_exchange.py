r"""The Gramian of the rows of all processes, of which no process holds more than a bucket.

With :math:`J = \sum_r S_r J_r` (see :class:`~lightning_jd.core.processes._layout.Layout`), there
are two ways to :math:`G = J J^\top`, and each parameter takes the one that sends less:

- by rows: every process gets some columns of all rows and multiplies these; the sum over processes
  of the products is G. A row travels once.
- by factors: where gradients are sums of outer products of activations and cotangents, these travel
  instead, to half of the other processes; each block :math:`J_r J_s^\top` is formed on one of its
  two processes.

Everything here is called by all processes in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from lightning_jd.core.processes._factors import add_by_factors, form_of, travelling_factors
from lightning_jd.core.processes._layout import Layout
from lightning_jd.core.processes._pool import Pool
from lightning_jd.engines.tape import Contribution

#: Bytes of rows that a process sends, and receives, at a time; as much as DDP reduces at a time.
BUCKET_BYTES = 25 << 20


def add_by_rows(G: Tensor, pool: Pool, layout: Layout, blocks: Iterable[Tensor]) -> None:
    """Add the products of some columns, as far as this process forms them.

    Args:
        G: Accumulator, updated in place, shape (m, m); its sum over processes is the Gramian.
        pool: The processes.
        layout: Whose rows go where.
        blocks: The rows of this process from left to right, shapes (rows, some columns). Processes
            may cut them in different ways.
    """
    for bucket in _buckets(blocks, _width(layout, G)):
        widths = _even(bucket.shape[1], pool.size)
        piece = layout.assembled(pool.exchange(bucket, layout.counts, widths))
        G.addmm_(piece, piece.T)


def all_at_first(pool: Pool, layout: Layout, blocks: Iterable[Tensor], like: Tensor) -> Tensor:
    """The Jacobian of all rows on the first process, shape (m, columns), and no column elsewhere.

    Arguments as in :func:`add_by_rows`; ``like`` gives the type.
    """
    pieces = []
    for bucket in _buckets(blocks, _width(layout, like)):
        widths = [bucket.shape[1], *[0] * (pool.size - 1)]
        pieces.append(layout.assembled(pool.exchange(bucket, layout.counts, widths)))
    return torch.cat(pieces, dim=1) if pieces else like.new_zeros(layout.m, 0)


def add_contributions(
    G: Tensor,
    pool: Pool,
    layout: Layout,
    sizes: Sequence[int],
    contributions: Iterable[Contribution],
) -> None:
    """Add the products of the rows of some parameters, each by the way that sends less.

    Args:
        G: See :func:`add_by_rows`.
        pool: The processes.
        layout: Whose rows go where.
        sizes: How many entries each parameter has.
        contributions: The rows of this process; their placements count these parameters.
    """
    parts: list[list[Contribution]] = [[] for _ in sizes]
    for contribution in contributions:
        parts[contribution.placements[0].parameter].append(contribution)
    forms = pool.gather(tuple(form_of(those) for those in parts))
    weights = travelling_factors(forms, layout.counts, sizes)
    add_by_factors(G, pool, layout, weights, dict(enumerate(parts)), BUCKET_BYTES)
    covered = {place for weight in weights for place in weight[0].places}
    singles: dict[int, list[Contribution]] = {k: [] for k in range(len(sizes)) if k not in covered}
    for those in [those for k, those in enumerate(parts) if k not in covered]:
        for single in [single for part in those for single in part.split()]:
            singles[single.placements[0].parameter].append(single)
    blocks = (
        block.to(G)
        for k, those in singles.items()
        for block in _blocks(those, layout.counts[pool.rank], sizes[k], _width(layout, G), G)
    )
    add_by_rows(G, pool, layout, blocks)


def _blocks(
    parts: Sequence[Contribution], m: int, size: int, width: int, like: Tensor
) -> Iterator[Tensor]:
    """The rows of one parameter, not many more than ``width`` columns at a time where possible."""
    if len(parts) == 1:
        yield from parts[0].blocks(width)
    elif parts:  # each has other entries of the parameter
        yield torch.stack([part.rows() for part in parts]).sum(dim=0)
    else:
        yield from like.new_zeros(1, 1).expand(m, size).split(width, dim=1)


def _width(layout: Layout, like: Tensor) -> int:
    """How many columns a bucket has, so that no process sends or holds more bytes than it may."""
    return max(1, BUCKET_BYTES // (like.element_size() * max(1, *layout.counts)))


def _buckets(blocks: Iterable[Tensor], width: int) -> Iterator[Tensor]:
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


def _even(columns: int, processes: int) -> list[int]:
    """How many columns each process gets."""
    each, more = divmod(columns, processes)
    return [each + (rank < more) for rank in range(processes)]

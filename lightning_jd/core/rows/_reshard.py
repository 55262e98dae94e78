"""Whole rows of each process, resharded as the parameters are: each process gets its columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from lightning_jd.core.processes._columns import blocks_of, bucket_width
from lightning_jd.core.processes._pool import Pool
from lightning_jd.engines.tape import Contribution

#: How many entries of a parameter go to each process, from the first entry on.
Cuts = Sequence[int]


def reshard_rows(
    parts: Sequence[Contribution],
    cuts: Sequence[Cuts],
    counts: Sequence[int],
    pool: Pool,
    like: Tensor,
) -> Tensor:
    """This process's columns of the rows of all processes, one below the other.

    Args:
        parts: The rows of this process.
        cuts: Those of each parameter.
        counts: How many rows each process has.
        pool: The processes.
        like: A tensor of the type of the result.
    """
    singles: list[list[Contribution]] = [[] for _ in cuts]
    for single in [single for part in parts for single in part.split()]:
        singles[single.placements[0].parameter].append(single)

    def rows() -> Iterator[Tensor]:
        for those, each in zip(singles, cuts, strict=True):
            size = sum(each)
            yield torch.cat([*blocks_of(those, counts[pool.rank], size, size, like)], dim=1)
            those.clear()  # the next ones need the memory

    return _reshard(rows(), cuts, counts, pool, like, "rows")


def reshard_gradient(
    parts: Sequence[Contribution],
    weights: Tensor,
    cuts: Mapping[int, Cuts],
    pool: Pool,
    like: Tensor,
) -> Tensor:
    """This process's columns of a combination of the rows of all, shape (columns,).

    Args:
        parts: The rows of this process.
        weights: Their weights.
        cuts: Those of the parameters that it is about, by position.
        pool: The processes.
        like: A tensor of the type of the result.
    """

    def gradients() -> Iterator[Tensor]:
        found: dict[int, Tensor] = {}
        waiting = list(parts)
        for k, each in cuts.items():
            for part in [p for p in waiting if k in {at.parameter for at in p.placements}]:
                waiting = [p for p in waiting if p is not part]
                for at, gradient in zip(part.placements, part.gradients(weights), strict=True):
                    found[at.parameter] = found.get(at.parameter, 0) + gradient.to(like)
            yield found.pop(k, like.new_zeros(sum(each))).view(1, -1)

    ones = [1] * pool.size
    return _reshard(gradients(), [*cuts.values()], ones, pool, like, "gradient").sum(dim=0)


def _reshard(
    blocks: Iterable[Tensor],
    cuts: Sequence[Cuts],
    counts: Sequence[int],
    pool: Pool,
    like: Tensor,
    purpose: str,
) -> Tensor:
    """Exchange whole parameters, as many at a time as fill a bucket."""
    width = bucket_width(counts, like)
    found: list[Tensor] = []
    waiting: list[tuple[Tensor, ...]] = []  # for each parameter a shard per process
    count = 0
    for k, (block, each) in enumerate(zip(blocks, cuts, strict=True)):
        waiting.append(block.split(list(each), dim=1))
        count += block.shape[1]
        if count < width and k + 1 < len(cuts):
            continue
        shards = [torch.cat(some, dim=1) for some in zip(*waiting, strict=True)]
        widths = [shard.shape[1] for shard in shards]
        found.append(pool.exchange(torch.cat(shards, dim=1), counts, widths, purpose))
        waiting, count = [], 0
    return torch.cat([like.new_empty(sum(counts), 0), *found], dim=1)

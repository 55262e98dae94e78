"""Whole rows of each process, cut up among all of them as the parameters are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from lightning_jd.core.processes._columns import buckets
from lightning_jd.core.processes._exchange import blocks_of, bucket_width
from lightning_jd.core.processes._pool import Pool
from lightning_jd.engines.tape import Contribution

#: How many entries of a parameter go to each process, from the first entry on.
Cuts = Sequence[int]


def rows_cut_up(
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
    width = bucket_width(counts, like)

    def blocks() -> Iterator[Tensor]:
        for those, each in zip(singles, cuts, strict=True):
            yield from blocks_of(those, counts[pool.rank], sum(each), width, like)
            those.clear()  # the next ones need the memory

    return _cut_up(blocks(), cuts, counts, pool, like, "rows")


def gradient_cut_up(
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
    about: dict[int, list[Contribution]] = {k: [] for k in cuts}
    for part in parts:
        for k in {placement.parameter for placement in part.placements} & cuts.keys():
            about[k].append(part)

    def blocks() -> Iterator[Tensor]:
        found: dict[int, Tensor] = {}
        done: set[int] = set()
        for k, those in about.items():
            for part in [part for part in those if id(part) not in done]:
                done.add(id(part))
                gradients = part.gradients(weights)
                for placement, gradient in zip(part.placements, gradients, strict=True):
                    at, new = placement.parameter, gradient.to(like)
                    found[at] = found[at] + new if at in found else new
            size = sum(cuts[k])
            yield found.pop(k).view(1, size) if k in found else like.new_zeros(1, size)

    ones = [1] * pool.size
    own = list(cuts.values())
    return _cut_up(blocks(), own, ones, pool, like, "gradient").sum(dim=0)


def _cut_up(
    blocks: Iterable[Tensor],
    cuts: Sequence[Cuts],
    counts: Sequence[int],
    pool: Pool,
    like: Tensor,
    purpose: str,
) -> Tensor:
    """No process holds more of whole rows than a bucket; they come from left to right."""
    left = [(owner, length) for each in cuts for owner, length in enumerate(each)][::-1]
    J = like.new_empty(sum(counts), sum(each[pool.rank] for each in cuts))
    begin = 0
    for bucket in buckets(blocks, bucket_width(counts, like)):
        runs: list[tuple[int, int]] = []
        count = bucket.shape[1]
        while count:
            owner, length = left.pop()
            runs.append((owner, min(length, count)))
            if length > count:
                left.append((owner, length - count))
            count -= min(length, count)
        parts = bucket.split([length for _, length in runs], dim=1)
        by_owner = [
            [part for part, (owner, _) in zip(parts, runs, strict=True) if owner == rank]
            for rank in range(pool.size)
        ]
        widths = [sum(part.shape[1] for part in some) for some in by_owner]
        ordered = torch.cat([part for some in by_owner for part in some], dim=1)
        end = begin + widths[pool.rank]
        J[:, begin:end] = pool.exchange(ordered, counts, widths, purpose)
        begin = end
    return J

"""Whole rows of each process, cut up among all of them as the parameters are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lightning_jd.core.processes._columns import buckets
from lightning_jd.core.processes._exchange import blocks_of, bucket_width
from lightning_jd.core.processes._layout import Layout
from lightning_jd.core.processes._pool import Pool
from lightning_jd.engines import Tape
from lightning_jd.engines.tape import Contribution


def cut_up(
    tape: Tape, cuts: Sequence[Sequence[int]], pool: Pool, layout: Layout, like: Tensor
) -> Tensor:
    """This process's columns of the rows of all processes, one below the other.

    No process holds more of whole rows than a bucket.

    Args:
        tape: The losses of this process, and the whole parameters.
        cuts: How many entries of each parameter go to each process, from the first entry on.
        pool: The processes.
        layout: The rows of each process, which stand for themselves.
        like: A tensor of the type of the result.
    """
    singles: list[list[Contribution]] = [[] for _ in cuts]
    for part in [part for whole in tape.contributions() for part in whole.split()]:
        singles[part.placements[0].parameter].append(part)
    width = bucket_width(layout, like)

    def blocks() -> Iterator[Tensor]:
        for k, each in enumerate(cuts):
            yield from blocks_of(singles[k], tape.objectives.m, sum(each), width, like)
            singles[k] = []  # the next ones need the memory

    left = [(owner, length) for each in cuts for owner, length in enumerate(each)][::-1]
    J = like.new_empty(layout.m, sum(each[pool.rank] for each in cuts))
    begin = 0
    for bucket in buckets(blocks(), width):
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
        J[:, begin:end] = pool.exchange(ordered, layout.counts, widths)
        begin = end
    return J

"""Inner products of rows on different processes, from the factors that these rows are made of."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_jd.core.processes._layout import Layout
from lightning_jd.core.processes._pool import Pool
from lightning_jd.core.processes._volume import factors_send_less
from lightning_jd.engines.tape import Contribution, Factors


class Factored(NamedTuple):
    """What one process tells the others about the factors of a weight.

    Attributes:
        key: See :class:`lightning_jd.engines.tape.Factors`.
        places: The position of the weight, and of its bias where the factors include it.
        shapes: Those of the factors; none if the process has no row that reaches the weight.
    """

    key: Hashable
    places: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def numbers(self) -> int:
        """How many numbers the factors are."""
        return sum(map(prod, self.shapes))


#: ``None``: no row of the process reaches the parameter.
Form = Factored | str | None


def form_of(parts: Sequence[Contribution]) -> Form:
    """How a process holds the rows of a parameter."""
    if not parts:
        return None
    if len(parts) > 1 or (factors := parts[0].factors()) is None:
        return "rows"
    places = tuple(placement.parameter for placement in parts[0].placements)
    return Factored(factors.key, places, factors.shapes)


#: A weight whose factors travel: what each process has of it.
Travelling = tuple[Factored, ...]


def travelling_factors(
    forms: Sequence[Sequence[Form]], counts: Sequence[int], sizes: Sequence[int]
) -> list[Travelling]:
    """The weights whose factors should travel.

    Args:
        forms: How each process holds the rows of each parameter.
        counts: How many rows each process has.
        sizes: How many entries each parameter has.
    """
    chosen = []
    for held in zip(*forms, strict=True):
        first = next((form for form in held if form is not None), None)
        if not isinstance(first, Factored) or not all(_alike(first, form) for form in held):
            continue
        if any(own[place] is not None for own in forms for place in first.places[1:]):
            continue  # on some process the bias is used without the weight
        none = first._replace(shapes=())
        weight = tuple(form if isinstance(form, Factored) else none for form in held)
        row = sum(sizes[place] for place in first.places)
        numbers = sum(form.numbers for form in weight)
        if factors_send_less(numbers, sum(counts) * row, processes=len(counts)):
            chosen.append(weight)
    return chosen


def _alike(first: Factored, other: Form) -> bool:
    return other is None or (isinstance(other, Factored) and other[:2] == first[:2])


def add_by_factors(
    G: Tensor,
    pool: Pool,
    layout: Layout,
    weights: Sequence[Travelling],
    parts: Mapping[int, Sequence[Contribution]],
    bucket_bytes: int,
) -> None:
    """Add the products of the rows of some weights, as far as this process forms them.

    Args:
        G: Accumulator, updated in place, shape (m, m); its sum over processes is the Gramian.
        pool: The processes.
        layout: Whose rows go where.
        weights: The weights, from :func:`travelling_factors`.
        parts: What this process holds of them, by position.
        bucket_bytes: How much to send at a time.
    """
    blocks: dict[int, Tensor] = {}

    def add(other: int, block: Tensor) -> None:
        blocks[other] = blocks[other] + block if other in blocks else block

    for bucket in _buckets(weights, bucket_bytes // G.element_size()):
        own: list[tuple[Factors, list[Tensor]] | None] = []
        for weight in bucket:
            part = next(iter(parts[weight[pool.rank].places[0]]), None)
            factors = None if part is None else part.factors()
            if part is None or factors is None:
                own.append(None)
                continue
            add(pool.rank, part.gramian().to(G))
            own.append((factors, [tensor.to(G) for tensor in factors.tensors()]))
        flat = [tensor.reshape(-1) for each in own if each is not None for tensor in each[1]]
        leaving = torch.cat(flat) if flat else G.new_empty(0)
        sizes = [_numbers(bucket, rank) for rank in range(pool.size)]
        for distance in range(1, pool.size // 2 + 1):
            arriving = pool.pass_on(leaving, distance, sizes)
            if arriving is None:
                continue
            behind = (pool.rank - distance) % pool.size
            theirs = _unpacked(arriving, [weight[behind].shapes for weight in bucket])
            for each, tensors in zip(own, theirs, strict=True):
                if each is not None and tensors:
                    add(behind, each[0].cross(each[1], tensors))
    for other, block in blocks.items():
        layout.add_block(G, block, pool.rank, other)


def _buckets(weights: Sequence[Travelling], numbers: int) -> Iterator[list[Travelling]]:
    bucket: list[Travelling] = []
    for weight in weights:
        grown = [*bucket, weight]
        if bucket and max(_numbers(grown, r) for r in range(len(weight))) > numbers:
            yield bucket
            grown = [weight]
        bucket = grown
    if bucket:
        yield bucket


def _numbers(bucket: Sequence[Travelling], rank: int) -> int:
    return sum(weight[rank].numbers for weight in bucket)


def _unpacked(
    numbers: Tensor, shapes: Sequence[tuple[tuple[int, ...], ...]]
) -> Iterator[list[Tensor]]:
    parts = iter(numbers.split([prod(shape) for those in shapes for shape in those]))
    for those in shapes:
        yield [next(parts).view(shape) for shape in those]

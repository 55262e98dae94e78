"""Inner products of rows on different processes, from the factors that these rows are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_jd.core.processes._layout import Layout
from lightning_jd.core.processes._pool import Pool
from lightning_jd.core.processes._volume import Matrix, factors_send_less
from lightning_jd.engines.tape import (
    Contribution,
    OuterProduct,
    SharedActivations,
    cross_gramian,
    shared_cross_gramian,
)
from lightning_jd.engines.tape.contributions.convolution import (
    ConvolutionWeight,
    patch_sizes,
    unfolded,
)


class Factored(NamedTuple):
    """How one process holds the rows of a weight: as factors of these sizes.

    Attributes:
        matrix: The sizes.
        places: The position of the weight, and of its bias where the factors include it.
        outputs_first: The weight is (outputs, inputs) rather than (inputs, outputs).
    """

    matrix: Matrix
    places: tuple[int, ...]
    outputs_first: bool


#: ``None``: no row of the process reaches the parameter.
Form = Factored | str | None
_FACTORED = (OuterProduct, SharedActivations)


def form_of(parts: Sequence[Contribution]) -> Form:
    """How a process holds the rows of a parameter."""
    if not parts:
        return None
    part = parts[0]
    if len(parts) == 1 and isinstance(part, ConvolutionWeight):
        sizes = patch_sizes(part)
        return "rows" if sizes is None else Factored(Matrix(*sizes), _places(part), True)
    if len(parts) > 1 or not isinstance(part, _FACTORED) or part.placements[0].where is not None:
        return "rows"
    positions, inputs = part.A.shape[-2:]
    bias = sum(placement.size for placement in part.placements[1:])
    shared = isinstance(part, SharedActivations)
    outputs_first = isinstance(part, OuterProduct) and part.cotangents_first
    return Factored(
        Matrix(positions, inputs, part.D.shape[-1], bias, shared),
        _places(part),
        outputs_first != part.placements[0].transposed,
    )


def _places(part: Contribution) -> tuple[int, ...]:
    return tuple(placement.parameter for placement in part.placements)


class Travelling(NamedTuple):
    """A weight whose factors travel.

    Attributes:
        places: The position of the weight, and of its bias where the factors include it.
        matrices: The sizes of the factors on each process; zero positions where it has none.
    """

    places: tuple[int, ...]
    matrices: tuple[Matrix, ...]

    @property
    def is_shared(self) -> bool:
        """The rows of a process have the same activations."""
        return self.matrices[0].shared


def travelling_factors(forms: Sequence[Sequence[Form]], counts: Sequence[int]) -> list[Travelling]:
    """The weights whose factors should travel.

    Args:
        forms: How each process holds the rows of each parameter.
        counts: How many rows each process has.
    """
    chosen = []
    for held in zip(*forms, strict=True):
        known = [form for form in held if form is not None]
        first = next(iter(known), None)
        if not isinstance(first, Factored) or not all(_alike(first, form) for form in known):
            continue
        if any(own[place] is not None for own in forms for place in first.places[1:]):
            continue  # on some process the bias is used without the weight
        none = first.matrix._replace(positions=0)
        matrices = tuple(form.matrix if isinstance(form, Factored) else none for form in held)
        if factors_send_less(counts, matrices):
            chosen.append(Travelling(first.places, matrices))
    return chosen


def _alike(first: Factored, other: Form) -> bool:
    return isinstance(other, Factored) and other == first._replace(
        matrix=first.matrix._replace(positions=other.matrix.positions)
    )


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
    counts = layout.counts
    blocks: dict[int, Tensor] = {}

    def add(other: int, block: Tensor) -> None:
        blocks[other] = blocks[other] + block if other in blocks else block

    for bucket in _buckets(weights, counts, bucket_bytes // G.element_size()):
        own = [_factored(parts[weight.places[0]]) for weight in bucket]
        for part in own:
            if part is not None:
                add(pool.rank, part.gramian().to(G))
        leaving = _packed([part for part in own if part is not None], G)
        sizes = [_numbers(bucket, rank, counts) for rank in range(pool.size)]
        for distance in range(1, pool.size // 2 + 1):
            arriving = pool.pass_on(leaving, distance, sizes)
            if arriving is None:
                continue
            behind = (pool.rank - distance) % pool.size
            theirs = _unpacked(arriving, bucket, behind, counts[behind])
            for weight, part, factors in zip(bucket, own, theirs, strict=True):
                if part is not None and factors[1].numel():
                    product = shared_cross_gramian if weight.is_shared else cross_gramian
                    mine = (part.A.to(G), part.D.to(G))
                    add(behind, product(mine, factors, bias=len(weight.places) > 1))
    for other, block in blocks.items():
        layout.add_block(G, block, pool.rank, other)


def _buckets(
    weights: Sequence[Travelling], counts: Sequence[int], numbers: int
) -> Iterator[list[Travelling]]:
    bucket: list[Travelling] = []
    for weight in weights:
        grown = [*bucket, weight]
        if bucket and max(_numbers(grown, r, counts) for r in range(len(counts))) > numbers:
            yield bucket
            grown = [weight]
        bucket = grown
    if bucket:
        yield bucket


def _numbers(bucket: Sequence[Travelling], rank: int, counts: Sequence[int]) -> int:
    return sum(weight.matrices[rank].numbers(counts[rank]) for weight in bucket)


def _factored(parts: Sequence[Contribution]) -> OuterProduct | SharedActivations | None:
    part = next(iter(parts), None)
    if isinstance(part, ConvolutionWeight):
        return unfolded(part)
    return part if isinstance(part, _FACTORED) else None


def _packed(parts: Sequence[OuterProduct | SharedActivations], like: Tensor) -> Tensor:
    flat = [factor.reshape(-1).to(like) for part in parts for factor in (part.A, part.D)]
    return torch.cat(flat) if flat else like.new_empty(0)


def _unpacked(
    numbers: Tensor, bucket: Sequence[Travelling], rank: int, m: int
) -> Iterator[tuple[Tensor, Tensor]]:
    for weight in bucket:
        T, i, o = weight.matrices[rank][:3]
        rows = () if weight.is_shared else (m,)
        first, second = T * i if weight.is_shared else m * T * i, m * T * o
        A, D, numbers = numbers.split([first, second, len(numbers) - first - second])
        yield A.view(*rows, T, i), D.view(m, T, o)

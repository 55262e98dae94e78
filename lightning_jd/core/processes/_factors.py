"""Inner products of rows on different processes, from the factors that these rows are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor

from lightning_jd.core.processes._forms import BESIDE, Factored, Form
from lightning_jd.core.processes._layout import Layout
from lightning_jd.core.processes._pool import Pool
from lightning_jd.core.processes._volume import factors_send_less
from lightning_jd.engines.tape import Contribution, Factors


@dataclass(frozen=True)
class Travelling:
    """A weight whose factors travel.

    Attributes:
        held: What each process has of it.
        turn: Of two processes that are opposite to each other on the circle, the first receives
            the factors of the other if this is 0, and the second if it is 1.
    """

    held: tuple[Factored, ...]
    turn: int

    @property
    def places(self) -> tuple[int, ...]:
        """See :class:`Factored`."""
        return self.held[0].places

    def goes(self, source: int, target: int) -> bool:
        """Whether one process sends its factors to another: each pair of them meets once."""
        size = len(self.held)
        distance = (target - source) % size
        if 2 * distance == size:
            return (source < target) == bool(self.turn)
        return 0 < 2 * distance < size


def travelling_factors(
    forms: Sequence[Sequence[Form]], counts: Sequence[int], sizes: Sequence[int]
) -> list[Travelling]:
    """The weights whose factors should travel.

    Args:
        forms: How each process holds the rows of each parameter.
        counts: How many rows each process has.
        sizes: How many entries each parameter has.
    """
    chosen: list[Travelling] = []
    work = [0, 0]  # of the two halves of the circle, which is to be the same
    for held in zip(*forms, strict=True):
        first = next((form for form in held if form is not None), None)
        if not isinstance(first, Factored) or not all(_alike(first, form) for form in held):
            continue
        if any(own[place] not in (None, BESIDE) for own in forms for place in first.places[1:]):
            continue  # on some process the bias is used without the weight
        none = first._replace(shapes=())
        weight = tuple(form if isinstance(form, Factored) else none for form in held)
        row = sum(sizes[place] for place in first.places)
        numbers = sum(form.numbers for form in weight)
        if factors_send_less(numbers, sum(counts) * row, processes=len(counts)):
            turn = int(work[1] < work[0])
            work[turn] += numbers
            chosen.append(Travelling(weight, turn))
    return chosen


def _alike(first: Factored, other: Form) -> bool:
    return other is None or (isinstance(other, Factored) and other[:2] == first[:2])


class Lot:
    """Some weights, whose factors travel to some of the other processes in one message.

    Args:
        weights: The weights.
        distances: How far their factors travel on the circle of processes.
        pool: The processes.
        parts: What this process holds of all parameters, by position.
        like: A tensor of the type of the Gramian.
    """

    def __init__(
        self,
        weights: Sequence[Travelling],
        distances: Sequence[int],
        pool: Pool,
        parts: Sequence[Sequence[Contribution]],
        like: Tensor,
    ) -> None:
        self._weights, self._distances, self._pool = weights, distances, pool
        self._parts = [next(iter(parts[weight.places[0]]), None) for weight in weights]
        self._own: list[tuple[Factors, list[Tensor]] | None] = []
        for part in self._parts:
            factors = None if part is None else part.factors()
            tensors = [] if factors is None else [tensor.to(like) for tensor in factors.tensors()]
            self._own.append(None if factors is None else (factors, tensors))
        self._like = like

    def leaving(self, target: int) -> list[Tensor]:
        """What this process sends to another one, flat."""
        found = []
        for weight, own in zip(self._weights, self._own, strict=True):
            if not self._goes(weight, self._pool.rank, target):
                continue
            if own is None:  # something else than was expected, or nothing
                found.append(self._like.new_zeros(weight.held[self._pool.rank].numbers))
            else:
                found += [tensor.reshape(-1) for tensor in own[1]]
        return found

    def size(self, source: int) -> int:
        """How many numbers another process sends to this one."""
        rank = self._pool.rank
        some = [weight for weight in self._weights if self._goes(weight, source, rank)]
        return sum(weight.held[source].numbers for weight in some)

    def add_own(self, blocks: Blocks) -> None:
        """Add the products of the rows of this process; once for all distances."""
        if 1 in self._distances:
            for part, own in zip(self._parts, self._own, strict=True):
                if part is not None and own is not None:
                    blocks.add(self._pool.rank, part.gramian())

    def add_cross(self, blocks: Blocks, source: int, arrived: Tensor) -> None:
        """Add the products of the rows of this process and of another one."""
        rank = self._pool.rank
        some = [k for k, weight in enumerate(self._weights) if self._goes(weight, source, rank)]
        shapes = [self._weights[k].held[source].shapes for k in some]
        for k, theirs in zip(some, _unpacked(arrived, shapes), strict=True):
            own = self._own[k]
            if own is not None and theirs:
                blocks.add(source, own[0].cross(own[1], theirs))

    def _goes(self, weight: Travelling, source: int, target: int) -> bool:
        distance = (target - source) % self._pool.size
        return distance in self._distances and weight.goes(source, target)


def lots(
    weights: Sequence[Travelling],
    pool: Pool,
    parts: Sequence[Sequence[Contribution]],
    like: Tensor,
    numbers: int,
) -> Iterator[Lot]:
    """Cut the weights, and the processes that they go to, into messages.

    Args:
        weights: The weights.
        pool: The processes.
        parts: What this process holds of all parameters, by position.
        like: A tensor of the type of the Gramian.
        numbers: How many numbers a process may send, and receive, at a time.
    """
    distances = range(1, pool.size // 2 + 1)
    for bucket in _buckets(weights, numbers):
        step = max(1, numbers // max(1, *(_numbers(bucket, rank) for rank in range(pool.size))))
        for begin in range(0, len(distances), step):
            yield Lot(bucket, distances[begin : begin + step], pool, parts, like)


class Blocks:
    """Products of the rows of this process and of others, which this process forms."""

    def __init__(self) -> None:
        self._found: dict[int, Tensor] = {}

    def add(self, other: int, block: Tensor) -> None:
        """Add to the products with the rows of another process, or with its own."""
        self._found[other] = self._found[other] + block if other in self._found else block

    def add_to(self, G: Tensor, layout: Layout, rank: int) -> None:
        """Put them where they belong in the Gramian."""
        for other, block in self._found.items():
            layout.add_block(G, block.to(G), rank, other)


def _buckets(weights: Sequence[Travelling], numbers: int) -> Iterator[list[Travelling]]:
    bucket: list[Travelling] = []
    for weight in weights:
        grown = [*bucket, weight]
        if bucket and max(_numbers(grown, r) for r in range(len(weight.held))) > numbers:
            yield bucket
            grown = [weight]
        bucket = grown
    if bucket:
        yield bucket


def _numbers(bucket: Sequence[Travelling], rank: int) -> int:
    return sum(weight.held[rank].numbers for weight in bucket)


def _unpacked(
    numbers: Tensor, shapes: Sequence[tuple[tuple[int, ...], ...]]
) -> Iterator[list[Tensor]]:
    parts = iter(numbers.split([prod(shape) for those in shapes for shape in those]))
    for those in shapes:
        yield [next(parts).view(shape) for shape in those]

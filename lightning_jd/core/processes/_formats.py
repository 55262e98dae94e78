"""The format of the rows of each parameter on each process, which decides how they travel."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from lightning_jd.engines.tape import Contribution


class Factored(NamedTuple):
    """Rows that are made of factors, smaller tensors.

    The single row of a head, which only one task reaches, is its own factor.

    Attributes:
        key: See :class:`lightning_jd.engines.tape.Factors`; ``("row", name)`` for a single row.
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


#: The rows come with those of another parameter, as those of a bias with its weight.
WITH_WEIGHT = "with weight"
#: ``None``: no row of the process reaches the parameter.
Format = Factored | str | None


def formats_of(
    parts: Sequence[Sequence[Contribution]], sizes: Sequence[int], tasks: Sequence[str]
) -> tuple[Format, ...]:
    """The format of the rows of each parameter on this process, from its :class:`LocalParts`."""
    found = [_format_of(k, those, sizes[k], tasks) for k, those in enumerate(parts)]
    for those in parts:
        for placement in [placement for part in those for placement in part.placements[1:]]:
            k = placement.parameter
            found[k] = WITH_WEIGHT if found[k] is None else "rows"
    return tuple(found)


def _format_of(k: int, parts: Sequence[Contribution], size: int, tasks: Sequence[str]) -> Format:
    if not parts:
        return None
    if tasks and len(parts) == 1 and (single := parts[0].alone()) is not None:
        return Factored(("row", tasks[single[0]]), (k,), ((size,),))
    if len(parts) > 1 or (factors := parts[0].factors()) is None:
        return "rows"
    places = tuple(placement.parameter for placement in parts[0].placements)
    return Factored(factors.key, places, factors.shapes)


@dataclass(frozen=True)
class FactoredWeight:
    """A weight whose factors travel; of two processes, ``turn`` (0 or 1) decides which receives."""

    formats: tuple[Factored, ...]
    turn: int

    def goes(self, source: int, target: int) -> bool:
        """Whether one process sends its factors to another: each pair of them meets once."""
        if source == target or not self.formats[source].shapes:
            return False
        return (source < target) == bool((source + target + self.turn) % 2)


def factored_weights(
    formats: Sequence[Sequence[Format]], counts: Sequence[int], sizes: Sequence[int]
) -> Iterator[FactoredWeight]:
    """The weights whose factors travel, because that sends less.

    ``counts`` are the rows of each process, ``sizes`` the entries of each parameter.
    """
    work = [0, 0]  # of the two turns, which is to be the same
    for held in zip(*formats, strict=True):
        first = next((each for each in held if each is not None), None)
        if not isinstance(first, Factored):
            continue
        none = first._replace(shapes=())
        weight = tuple(each if isinstance(each, Factored) else none for each in held)
        if not all(each is None or isinstance(each, Factored) for each in held):
            continue
        if any(each[:2] != first[:2] for each in weight):
            continue
        if any(own[k] not in (None, WITH_WEIGHT) for own in formats for k in first.places[1:]):
            continue  # on some process the bias is used without the weight
        numbers = sum(each.numbers for each in weight)
        rows = sum(counts) * sum(sizes[k] for k in first.places)
        if factors_send_less(numbers, rows, processes=len(counts)):
            turn = int(work[1] < work[0])
            work[turn] += numbers
            yield FactoredWeight(weight, turn)


def factors_send_less(factors: int, rows: int, *, processes: int) -> bool:
    """Whether the factors of a weight travel in the place of its rows.

    Rows go to the process that multiplies their columns, once. Factors go to half of the other
    processes, which is worth it as long as they are small and the processes few.

    ``factors`` and ``rows`` are the numbers of entries on all processes together.

    Example:
        >>> numbers, rows = 32 * (1024 + 1024), 32 * 1024 * 1024
        >>> [factors_send_less(R * numbers, R * rows, processes=R) for R in (2, 64, 2048)]
        [True, True, False]
    """
    return factors * (processes - 1) / 2 < rows * (processes - 1) / processes

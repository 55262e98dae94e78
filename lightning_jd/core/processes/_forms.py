"""How a process holds the rows of each parameter: what decides on the way that they travel."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import prod
from typing import NamedTuple

from lightning_jd.core.processes._pool import Pool
from lightning_jd.engines.tape import Contribution


class Factored(NamedTuple):
    """Rows that are made of factors, smaller tensors.

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


class OneRow(NamedTuple):
    """One row: no other objective of the process reaches the parameter, as that of a head.

    Attributes:
        name: The name of the row.
    """

    name: str


#: The rows come with those of another parameter, as those of a bias with its weight.
BESIDE = "beside"
#: ``None``: no row of the process reaches the parameter.
Form = Factored | OneRow | str | None
#: One per process, with one per parameter.
Forms = tuple[tuple[Form, ...], ...]


def forms_of(parts: Sequence[Sequence[Contribution]], names: Sequence[str]) -> tuple[Form, ...]:
    """How a process holds the rows of each parameter.

    Args:
        parts: What there is of them, by parameter; each at the first one that it is about.
        names: The names of the rows of the process.
    """
    found = [_form_of(those, names) for those in parts]
    for those in parts:
        for placement in [placement for part in those for placement in part.placements[1:]]:
            k = placement.parameter
            found[k] = BESIDE if found[k] is None else "rows"
    return tuple(found)


def _form_of(parts: Sequence[Contribution], names: Sequence[str]) -> Form:
    if not parts:
        return None
    if len(parts) == 1 and (alone := parts[0].alone()) is not None:
        return OneRow(names[alone[0]])
    if len(parts) > 1 or (factors := parts[0].factors()) is None:
        return "rows"
    places = tuple(placement.parameter for placement in parts[0].placements)
    return Factored(factors.key, places, factors.shapes)


def rows_alone(forms: Sequence[Sequence[Form]]) -> dict[int, str]:
    """The parameters that one row of J reaches, and no other one, and its name.

    Args:
        forms: How each process holds the rows of each parameter.
    """
    found = {}
    for k, held in enumerate(zip(*forms, strict=True)):
        kinds = {form for form in held if form is not None}
        if len(kinds) == 1 and isinstance(form := kinds.pop(), OneRow):
            found[k] = form.name
    return found


class Expected:
    """How all processes have held the rows of some parameters when this was agreed on before.

    Args:
        pool: The processes.
        agreed: What stands for all that they have agreed on in this step.
        names: The parameters.
    """

    #: Where they have held them in another way so often, they are asked in every step.
    MISSES = 2

    def __init__(self, pool: Pool, agreed: tuple[int, ...], names: tuple[str, ...]) -> None:
        self._pool, self._key = pool, (agreed, names)
        self._misses: int
        self._known: Forms | None
        self._misses, self._known = pool.recall(self._key) or (0, None)

    @property
    def forms(self) -> Forms | None:
        """The forms of each process, if they are to be expected; the same on all of them."""
        return self._known if self._misses <= self.MISSES else None

    def ask(self, own: tuple[Form, ...]) -> Forms:
        """Ask all processes, of which this one holds its rows in the form ``own``."""
        found = tuple(self._pool.gather(own))
        if found != self._known:
            misses = self._misses if self._known is None else self._misses + 1
            self._pool.note(self._key, (misses, found))
        return found

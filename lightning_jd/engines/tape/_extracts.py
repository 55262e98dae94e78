"""What is computed of the contributions of a pass, one after the other, in place of the Gramian."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.engines.tape._compare import random_vector
from lightning_jd.engines.tape.contributions import Contribution, Projection

#: How far a number may be from a certified one, relative to itself, ...
_ALIKE = 1e-3
#: ... and in units of the machine precision, relative to all parameters together.
_CANCELLED = 64.0


class Extract(ABC):
    """Takes the contributions to single parameters; those of one parameter add up.

    Attributes:
        name: For messages, and to count certificates.
        wrong: The parameters whose numbers were not those of the certified Gramian or gradients.
    """

    name: ClassVar[str]

    def __init__(self) -> None:
        self.wrong: set[int] = set()
        #: The Gramian that was certified in this step, if one was.
        self._certified: Tensor | None = None

    def begin(self, certified: Tensor | None = None) -> None:
        """Forget everything, before a pass.

        Args:
            certified: The Gramian of all parameters, if it has just been certified.
        """
        self.wrong.clear()
        self._certified = certified

    def take(self, contribution: Contribution) -> None:
        """Add a contribution, and compare it with its certified numbers if there are some."""
        for part in contribution.split():
            number = self.add(part)
            if self._certified is not None:
                off, length, total = self.compared(part, number, self._certified)
                eps = torch.finfo(self._certified.dtype).eps
                if not bool((off.abs() <= _ALIKE * length + _CANCELLED * eps * total).all()):
                    self.wrong.add(part.placements[0].parameter)

    @abstractmethod
    def add(self, part: Contribution) -> Tensor:
        """Add a contribution to one parameter, and return what was added."""

    @abstractmethod
    def compared(self, part: Contribution, number: Tensor, G: Tensor) -> tuple[Tensor, ...]:
        """What a number is off, its own size, and the size for all parameters together.

        Args:
            part: The contribution, whose Gramian and gradients have been certified.
            number: What :meth:`add` has returned.
            G: The Gramian of all parameters.
        """


class SquaredNorms(Extract):
    """The squared norms of the rows, shape (m,), by parameter."""

    name = "norms"

    @override
    def begin(self, certified: Tensor | None = None) -> None:
        super().begin(certified)
        self.found: dict[int, Tensor] = {}

    @override
    def add(self, part: Contribution) -> Tensor:
        k, squares = part.placements[0].parameter, part.squared_norms()
        self.found[k] = self.found[k] + squares if k in self.found else squares
        return squares

    @override
    def compared(self, part: Contribution, number: Tensor, G: Tensor) -> tuple[Tensor, ...]:
        expected = part.gramian().diagonal()
        return number - expected, expected.abs(), G.diagonal()


class Projections(Extract):
    """The projections of the rows, shape (m, dim).

    Args:
        dim: The number of dimensions.
        seed: Of the projection.
        names: The names of the parameters.
    """

    name = "projection"

    def __init__(self, dim: int, seed: int, names: Sequence[str]) -> None:
        super().__init__()
        self._of = [Projection(dim, seed, name) for name in names]

    @override
    def begin(self, certified: Tensor | None = None) -> None:
        super().begin(certified)
        self.total: Tensor | None = None

    @override
    def add(self, part: Contribution) -> Tensor:
        projected = part.project(self._of[part.placements[0].parameter])
        self.total = projected if self.total is None else self.total + projected
        return projected

    @override
    def compared(self, part: Contribution, number: Tensor, G: Tensor) -> tuple[Tensor, ...]:
        v = random_vector(G, spread=1e3)
        gradient = self._of[part.placements[0].parameter].of(iter([part.gradients(v)[0][None]]))
        own, every = (v.square() @ S.diagonal().to(v) for S in (part.gramian(), G))
        return v.to(number) @ number - gradient[0], own.abs().sqrt(), every.abs().sqrt()


class Parts(Extract):
    """The contributions themselves, by parameter, to be multiplied with those of another graph."""

    name = "block"

    @override
    def begin(self, certified: Tensor | None = None) -> None:
        super().begin(certified)
        self.found: dict[int, list[Contribution]] = {}

    @override
    def add(self, part: Contribution) -> Tensor:
        self.found.setdefault(part.placements[0].parameter, []).append(part)
        return part.cross(part) if self._certified is not None else torch.empty(0)

    @override
    def compared(self, part: Contribution, number: Tensor, G: Tensor) -> tuple[Tensor, ...]:
        expected = part.gramian()
        own, every = (S.diagonal().clamp(min=0).sqrt() for S in (expected, G))
        return number - expected, torch.outer(own, own), torch.outer(every, every)

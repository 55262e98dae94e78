"""Rows of one process whose graph is alive: nothing of the size of the Jacobian is kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.core.processes._exchange import add_contributions
from lightning_jd.core.processes._layout import LISTED, Description, Layout, kind_of
from lightning_jd.core.processes._pool import Pool
from lightning_jd.core.rows._base import LocalRows
from lightning_jd.engines import (
    NamedParameters,
    Objectives,
    Slow,
    Tape,
    column_count,
    leaves_reached,
    slow_parameters,
)
from lightning_jd.engines.tape import Contribution


class LiveRows(LocalRows):
    """Differentiates losses when their rows are asked for.

    Args:
        objectives: The losses of this process; ``None`` if it has none.
        of: The same and those that were left out.
        scale: See :func:`lightning_jd.core.compute_update`.
        memory: ``"fast"`` keeps activation gradients (and the rows of tasks where these are
            smaller) from the Gramian to the gradients; ``"low"`` works on some parameters at a
            time, with passes for each of them, and ends with an ordinary backward pass.
    """

    def __init__(
        self,
        objectives: Objectives | None,
        of: Objectives | None,
        scale: float | Tensor,
        memory: Literal["fast", "low"],
    ) -> None:
        self.objectives, self.of, self.scale = objectives, of, scale
        self._memory = memory
        self._tapes: dict[str, Tape] = {}  # by the first parameter
        self._paths: dict[str, str] = {}
        self.slow: dict[str, Slow] = {}
        self._reached = set() if objectives is None else leaves_reached(objectives)

    @override
    def description(self) -> Description:
        kinds, columns = ((), ()) if self.of is None else kind_of(self.of)
        names = () if self.objectives is None else self.objectives.names
        if set(kinds) & set(LISTED):
            holes = self.of is not None and self.of.m > len(names)
            return Description(kinds, columns, tasks=(), listed=len(names), holes=holes)
        return Description(kinds, columns, tasks=tuple((name, 1) for name in names), listed=0)

    @override
    def add_products(self, G: Tensor, pool: Pool, layout: Layout, named: NamedParameters) -> None:
        for some in self._at_a_time(named, layout.m):
            sizes = [column_count(tensor) for _, tensor in some]
            add_contributions(G, pool, layout, sizes, self._contributions(some))

    @override
    def gradients(self, named: NamedParameters, weights: Tensor) -> dict[str, Tensor]:
        if not self._reaches(named):
            return {}
        tape = self._tapes.get(named[0][0])
        found = self._ordinary(named, weights) if tape is None else tape.gradients(weights)
        own = zip(named, found, strict=True)
        return {name: gradient for (name, _), gradient in own if gradient is not None}

    @override
    def values(self) -> list[Tensor]:
        return [] if self.objectives is None else [self.objectives.values()]

    @property
    @override
    def paths(self) -> dict[str, str]:
        return self._paths

    def _at_a_time(self, named: NamedParameters, m: int) -> Iterator[NamedParameters]:
        """All parameters, or so many at a time that their rows are not more than twice all."""
        limit = 2 * sum(tensor.numel() for _, tensor in named)
        some: NamedParameters = []
        for name, tensor in named:
            size = m * (tensor.numel() + sum(other.numel() for _, other in some))
            if some and size > limit and self._memory == "low":
                yield some
                some = []
            some.append((name, tensor))
        yield some

    def _contributions(self, named: NamedParameters) -> list[Contribution]:
        if self.objectives is None or not self._reaches(named):
            return []
        tape = Tape(self.objectives, named, scale=self.scale)
        found = tape.contributions()
        self._paths |= tape.paths
        self.slow |= slow_parameters(tape)
        if self._memory == "fast":
            self._tapes[named[0][0]] = tape
        return found

    def _reaches(self, named: NamedParameters) -> bool:
        return any(id(tensor) in self._reached for _, tensor in named)

    def _ordinary(self, named: NamedParameters, weights: Tensor) -> list[Tensor | None]:
        assert self.objectives is not None
        gradients = torch.autograd.grad(
            self.objectives.outputs,  # type: ignore[arg-type]  # tensors and edges may be mixed
            [tensor for _, tensor in named],
            self.objectives.cotangents(weights * self.scale),
            retain_graph=True,
            allow_unused=True,
        )
        return [None if gradient is None else gradient / self.scale for gradient in gradients]

"""Owners that depend on the data of a step: index tensors, and probes of operations."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from lightning_jd.engines.tape.graph import Graph, Indices, Shape
from lightning_jd.engines.tape.owners._owners import Owners
from lightning_jd.engines.tape.owners._probe import Probe


@dataclass(frozen=True)
class Crossed:
    """An operation whose owners were found by a probe.

    Attributes:
        owners: Those of its outputs.
        shapes: The shapes of its inputs; ``None`` for those that do not matter.
    """

    owners: tuple[Owners | None, ...]
    shapes: tuple[Shape | None, ...]

    def equals(self, other: Crossed) -> bool:
        """Whether the experiment is the same."""
        return _digest(self.owners) == _digest(other.owners) and self.shapes == other.shapes


@dataclass
class DataUse:
    """The data that plans for one graph depend on.

    Attributes:
        read: Operations whose index tensors matter.
        crossed: Operations that were probed.
    """

    read: set[int] = field(default_factory=set)
    crossed: dict[int, Crossed] = field(default_factory=dict)


class Evidence:
    """Index tensors and probes, computed on demand.

    A plan that was made with some of it holds for steps with the same evidence.
    """

    def __init__(self, graph: Graph, m: int) -> None:
        self.m = m
        self.indices = Indices(graph.nodes)
        self._crossed: dict[int, tuple[Crossed, Sequence[Owners | None] | None]] = {}
        self._probe = Probe(graph, m)

    def below(self, node: int, at: Crossed) -> Sequence[Owners | None] | None:
        """Find the owners of the inputs of an operation, see :meth:`Probe.below`."""
        if self.m == 1:
            return None
        known = self._crossed.get(node)
        if known is None or not known[0].equals(at):
            known = self._crossed[node] = at, self._probe.below(node, at.owners, at.shapes)
        return known[1]

    def note(self, used: DataUse) -> None:
        """Add the index tensors and probes of this step to those of later steps."""
        used.read |= self.indices.read
        used.crossed |= {node: at for node, (at, _) in self._crossed.items()}

    def digest(self, used: DataUse) -> Hashable:
        """Equal for steps with equal index tensors and equal owners after probes."""
        if self.m == 1:
            return None
        crossed = [self.below(node, used.crossed[node]) for node in sorted(used.crossed)]
        return self.indices.digest(used.read), tuple(map(_digest, crossed))


def _digest(several: Sequence[Owners | None] | None) -> Hashable:
    if several is None:
        return None
    return tuple([None if who is None else (who.axis, who.ids.tobytes()) for who in several])

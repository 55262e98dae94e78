"""What the data of one step say about owners, beyond the structure of the graph."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from lightning_jd.engines.tape.graph import Graph, Indices, Shape
from lightning_jd.engines.tape.owners._owners import Owners
from lightning_jd.engines.tape.owners._probe import Probe


@dataclass(frozen=True)
class Crossed:
    """An operation that owners were sent through by experiment.

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
class Questions:
    """The evidence that plans for one graph have asked for.

    Attributes:
        read: Operations whose index tensors matter.
        crossed: Operations that owners were sent through.
    """

    read: set[int] = field(default_factory=set)
    crossed: dict[int, Crossed] = field(default_factory=dict)


class Evidence:
    """Index tensors and experiments, looked up on demand.

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

    def asked(self, questions: Questions) -> None:
        """Add what was looked up to what is looked up in later steps."""
        questions.read |= self.indices.read
        questions.crossed |= {node: at for node, (at, _) in self._crossed.items()}

    def digest(self, questions: Questions) -> Hashable:
        """Equal for steps that answer some questions alike; they are looked up."""
        if self.m == 1:
            return None
        crossed = [self.below(node, questions.crossed[node]) for node in sorted(questions.crossed)]
        return self.indices.digest(questions.read), tuple(map(_digest, crossed))


def _digest(several: Sequence[Owners | None] | None) -> Hashable:
    if several is None:
        return None
    return tuple([None if who is None else (who.axis, who.ids.tobytes()) for who in several])

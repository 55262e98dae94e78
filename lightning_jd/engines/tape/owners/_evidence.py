"""What the data of one step say about owners, beyond the structure of the graph."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from lightning_jd.engines.tape.graph import Edge, Graph, Indices, Shape
from lightning_jd.engines.tape.owners._owners import NOBODY, Owners
from lightning_jd.engines.tape.owners._probe import Probe


@dataclass(frozen=True)
class Crossed:
    """An operation that owners were sent through by experiment.

    Attributes:
        owners: Those of its outputs.
        shapes: The shapes of its inputs; ``None`` for those that do not matter.
        is_static: Which outputs an input matters to depends on the structure of the graph only.
    """

    owners: tuple[Owners | None, ...]
    shapes: tuple[Shape | None, ...]
    is_static: bool

    def equals(self, other: Crossed) -> bool:
        """Whether the experiment is the same."""
        return _digest(self.owners) == _digest(other.owners) and self.shapes == other.shapes


@dataclass
class Questions:
    """The evidence that plans for one graph have asked for.

    Attributes:
        read: Operations whose index tensors matter.
        probed: Edges where owners were found by passes from the losses.
        crossed: Operations that owners were sent through.
    """

    read: set[int] = field(default_factory=set)
    probed: set[Edge] = field(default_factory=set)
    crossed: dict[int, Crossed] = field(default_factory=dict)


class Evidence:
    """Index tensors and experiments, looked up on demand.

    A plan that was made with some of it holds for steps with the same evidence.

    Args:
        graph: The graph of the step.
        losses: The losses if they belong to instances; ``None`` if one owner owns everything.
        scale: What the losses are multiplied by before they are differentiated.
    """

    def __init__(self, graph: Graph, losses: Tensor | None, scale: float | Tensor) -> None:
        #: The number of owners.
        self.m = 1 if losses is None else len(losses)
        self.indices = Indices(graph.nodes)
        #: Owners that were found by passes from the losses; ``None`` where slices are mixed.
        self.probed: dict[Edge, Owners | None] = {}
        self._crossed: dict[int, tuple[Crossed, Sequence[Owners | None] | None]] = {}
        self._probe = None if losses is None else Probe(graph, losses, scale)

    def probe(self, edges: Collection[Edge]) -> None:
        """Find the owners at some edges, by passes from the losses."""
        assert self._probe is not None
        new = sorted(set(edges) - self.probed.keys())
        if new:
            self.probed.update(zip(new, self._probe.at(new), strict=True))

    def below(self, node: int, at: Crossed) -> Sequence[Owners | None] | None:
        """Find the owners of the inputs of an operation, see :meth:`Probe.below`."""
        if self._probe is None:
            return None
        known = self._crossed.get(node)
        if known is None or not known[0].equals(at):
            known = self._crossed[node] = at, self._probe.below(node, at.owners, at.shapes)
        return known[1]

    def asked(self, questions: Questions) -> None:
        """Add what was looked up to what is looked up in later steps."""
        questions.read |= self.indices.read
        questions.probed |= self.probed.keys()
        questions.crossed |= {
            node: at
            for node, (at, found) in self._crossed.items()
            # a slice that nobody owned in this step may have an owner in the next one
            if not at.is_static or found is None or any(_has_gaps(who) for who in found)
        }

    def digest(self, questions: Questions) -> Hashable:
        """Equal for steps that answer some questions alike; they are looked up."""
        if self._probe is None:
            return None
        self.probe(questions.probed)
        probed = _digest([self.probed[edge] for edge in sorted(questions.probed)])
        crossed = [self.below(node, questions.crossed[node]) for node in sorted(questions.crossed)]
        return self.indices.digest(questions.read), probed, tuple(map(_digest, crossed))


def _has_gaps(owners: Owners | None) -> bool:
    return owners is not None and bool((owners.ids == NOBODY).any())


def _digest(several: Sequence[Owners | None] | None) -> Hashable:
    if several is None:
        return None
    return tuple([None if who is None else (who.axis, who.ids.tobytes()) for who in several])

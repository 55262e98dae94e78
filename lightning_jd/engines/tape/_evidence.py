"""What the data of one step say about owners, beyond the structure of the graph."""

from __future__ import annotations

from collections.abc import Collection, Hashable

from torch import Tensor

from lightning_jd.engines.tape._facts import Indices
from lightning_jd.engines.tape._graph import Edge, Graph
from lightning_jd.engines.tape._owners import Owners
from lightning_jd.engines.tape._probe import Probe


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
        #: Owners that were found by experiment; ``None`` where slices are mixed.
        self.probed: dict[Edge, Owners | None] = {}
        self._probe = None if losses is None else Probe(graph, losses, scale)

    def probe(self, edges: Collection[Edge]) -> None:
        """Make the experiment for some edges."""
        assert self._probe is not None
        self.probed.update(self._probe.owners(edges))

    def digest(self, read: Collection[int], probed: Collection[Edge]) -> Hashable:
        """Equal for steps that agree in some indices and experiments, which are looked up."""
        if self._probe is None:
            return None
        if probed:
            self.probe(probed)
        owners = tuple([_digest(self.probed[edge]) for edge in sorted(probed)])
        return self.indices.digest(read), owners


def _digest(owners: Owners | None) -> Hashable:
    return None if owners is None else (owners.axis, owners.ids.tobytes())

"""The autograd graph below the losses, as data.

A walk gives two parallel lists: the nodes, which hold activations, and their records, which are
plain hashable values. Everything that is *concluded* about a graph is a function of the records
alone. So a conclusion may be cached under them and can never be stale, and a cache keeps neither
activations nor parameters alive.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node, get_gradient_edge

from lightning_jd.engines._reach import check_visible
from lightning_jd.engines.tape.flow import FACTS
from lightning_jd.engines.tape._owners import Shape

LEAF = "torch::autograd::AccumulateGrad"
FOREIGN = -1
#: Before the names of operations with complex results, about which nothing is assumed.
COMPLEX = "complex "


class Edge(NamedTuple):
    """An output of a node: what ``GradientEdge`` is to autograd."""

    node: int
    output: int


class Record(NamedTuple):
    """What the plan may know about a node.

    Attributes:
        name: The name that autograd gives it, such as ``"AddmmBackward0"``.
        shapes: The shapes of the outputs of the operation.
        inputs: Where each differentiable input of the operation comes from, or ``None``.
        facts: Its arguments as far as the flow of owners depends on them; of a leaf, the position
            of the parameter, or :data:`FOREIGN`.
    """

    name: str
    shapes: tuple[Shape, ...]
    inputs: tuple[Edge | None, ...]
    facts: Hashable


@dataclass(frozen=True)
class Graph:
    """Nodes below some losses, parents before their first child, with one record each."""

    nodes: list[Node]
    records: tuple[Record, ...]
    roots: tuple[Edge, ...]


def walk(outputs: Sequence[Tensor], positions: Mapping[int, int]) -> Graph:
    """List everything that the outputs depend on.

    Args:
        outputs: The losses.
        positions: ``id`` of each tracked parameter to its position.

    Raises:
        GraphError: If a part of the model is hidden behind reentrant checkpointing.
    """
    index: dict[Node, int] = {}
    nodes: list[Node] = []

    def enter(node: Node) -> int:
        number = index.get(node)
        if number is None:
            number = index[node] = len(nodes)
            nodes.append(node)
        return number

    edges = [get_gradient_edge(output) for output in outputs]
    roots = tuple(Edge(enter(edge.node), edge.output_nr) for edge in edges)
    records: list[Record] = []
    for node in nodes:  # grows while it is walked: breadth first
        name = node.name()
        inputs = tuple(
            [None if child is None else Edge(enter(child), k) for child, k in node.next_functions]
        )
        outputs_of = node._input_metadata  # type: ignore[attr-defined]
        shapes = tuple([tuple(output.shape) for output in outputs_of])
        if name == LEAF:
            facts: Hashable = positions.get(id(node.variable), FOREIGN)  # type: ignore[attr-defined]
        else:
            read = FACTS.get(name)
            facts = None if read is None else read(node)
            if any([output.dtype.is_complex for output in outputs_of]):
                name = COMPLEX + name
        records.append(Record(name, shapes, inputs, facts))
        if name.startswith("CheckpointFunction"):
            check_visible([node])
    return Graph(nodes, tuple(records), roots)


def local_vjp(node: Node, cotangents: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """The gradient at every input of one operation, for given gradients at its outputs.

    The operation is differentiated alone: nothing below it runs.
    """
    call: Any = node.apply if isinstance(node, BackwardCFunction) else node  # type: ignore[attr-defined]
    found = call(*cotangents)
    return found if isinstance(found, tuple) else (found,)

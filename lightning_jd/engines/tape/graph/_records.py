"""The autograd graph below the losses, as data.

A walk gives the nodes, which hold activations, and a signature, which is plain hashable data.
Everything that is *concluded* about a graph is a function of its signature alone. So a conclusion
may be cached under it and can never be stale, and a cache keeps neither activations nor parameters
alive.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import Node

from lightning_jd.engines._objectives import Output
from lightning_jd.engines._reach import HIDING, check_visible, edge_of
from lightning_jd.engines.tape.graph._node_arguments import READERS
from lightning_jd.engines.tape.graph._types import Shape

LEAF = "torch::autograd::AccumulateGrad"
FOREIGN = -1
#: The name of operations with nested tensors, whose sizes are data.
NESTED = "nested tensors"


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


class Graph(NamedTuple):
    """The nodes below some outputs, and all that may be concluded from.

    Attributes:
        nodes: Each is listed once.
        signature: One entry per node, in the same order; see :func:`records_of`.
        roots: The outputs.
        types: The types of all results of operations, in the order of the nodes.
    """

    nodes: list[Node]
    signature: tuple[Hashable, ...]
    roots: tuple[Edge, ...]
    types: tuple[torch.dtype, ...]


def walk(outputs: Sequence[Output], parameters: Sequence[Tensor]) -> Graph:
    """List everything that the outputs depend on.

    It runs in every step, so entries of the signature are raw: records are made from them once.

    Args:
        outputs: The losses.
        parameters: The tracked parameters.

    Raises:
        GraphError: If a part of the model is hidden behind reentrant checkpointing.
    """
    positions = {id(parameter): k for k, parameter in enumerate(parameters)}
    number_of: dict[Node, int] = {}
    nodes: list[Node] = []
    roots = []
    for output in outputs:
        edge = edge_of(output)
        if edge.node not in number_of:
            number_of[edge.node] = len(nodes)
            nodes.append(edge.node)
        roots.append(Edge(number_of[edge.node], edge.output_nr))
    signature: list[Hashable] = []
    types: list[torch.dtype] = []
    for node in nodes:  # grows while it is walked: breadth first
        name = node.name()
        if name == LEAF:
            leaf = node.variable  # type: ignore[attr-defined]
            signature.append((positions.get(id(leaf), FOREIGN), *leaf.shape))
            continue
        inputs: list[int | None] = []
        for child, output_number in node.next_functions:
            if child is None:
                inputs.append(None)
                continue
            number = number_of.get(child)
            if number is None:
                number = number_of[child] = len(nodes)
                nodes.append(child)
            inputs += (number, output_number)
        shapes: list[Shape] = []
        for described in node._input_metadata:
            types.append(described.dtype)
            if described.is_nested_tensor:
                name = NESTED
                shapes.append(())
            else:
                shapes.append(tuple(described.shape))
        facts = None
        if name in READERS:
            facts = READERS[name](node)
        elif name in HIDING:
            check_visible([node])
        signature.append((name, *shapes, tuple(inputs), facts))
    return Graph(nodes, tuple(signature), tuple(roots), tuple(types))


def types_in(graph: Graph) -> set[torch.dtype]:
    """The floating-point types of all results of operations."""
    return {
        dtype.to_real() for dtype in set(graph.types) if dtype.is_floating_point or dtype.is_complex
    }


def records_of(signature: Sequence[Any]) -> tuple[Record, ...]:
    """Spell a signature out."""
    records = []
    for entry in signature:
        if isinstance(entry[0], int):
            position, *shape = entry
            records.append(Record(LEAF, (tuple(shape),), (), position))
            continue
        name, *shapes, raw, facts = entry
        numbers = iter(raw)
        inputs = [None if number is None else Edge(number, next(numbers)) for number in numbers]
        records.append(Record(name, tuple(shapes), tuple(inputs), facts))
    return tuple(records)

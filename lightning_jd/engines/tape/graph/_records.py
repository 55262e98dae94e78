"""The autograd graph below the losses, as data.

A walk gives the nodes, which hold activations, and a signature, which is plain hashable data.
Everything that is *concluded* about a graph is a function of its signature alone. So a conclusion
may be cached under it and can never be stale, and a cache keeps neither activations nor parameters
alive.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from lightning_jd.engines._graph import HIDING, LEAF, check_visible, nodes_below, place_of
from lightning_jd.engines._objectives import Objectives
from lightning_jd.engines.tape.graph._constants import Shape
from lightning_jd.engines.tape.graph._node_arguments import READERS, signed

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
        nodes: Each is listed once, after every node that depends on it.
        signature: All nodes in the same order, one after the other; see :func:`records_of`.
        roots: The outputs.
        types: Those of the results of all operations.
    """

    nodes: list[Node]
    signature: tuple[Hashable, ...]
    roots: tuple[Edge, ...]
    types: frozenset[torch.dtype]


def walk(objectives: Objectives, parameters: Sequence[Tensor]) -> Graph:
    """List everything that the losses depend on; ``parameters`` are the tracked leaves.

    It runs whenever a graph may be new, so the signature is raw: records are made from it once.

    Raises:
        GraphError: If a part of the model is hidden behind reentrant checkpointing.
    """
    below = nodes_below(objectives)
    positions = {id(parameter): k for k, parameter in enumerate(parameters)}
    numbers = {node: number for number, node in enumerate(below)}
    signature: list[Any] = []
    types: set[torch.dtype] = set()
    for node, children in below.items():
        name = node.name()
        if name == LEAF:
            leaf = node.variable  # type: ignore[attr-defined]
            signature += (positions.get(id(leaf), FOREIGN), leaf.shape)
            continue
        described = node._input_metadata
        signature += (name, len(children), len(described))
        for child, output in children:
            if child is None:
                signature.append(None)
            else:
                signature += (numbers[child], output)
        for result in described:
            types.add(result.dtype)
            if result.is_nested_tensor:
                signature.append(NESTED)
            else:
                sizes = result.shape
                signature.append(len(sizes))
                signature += sizes
        if name in READERS:
            signature.append(READERS[name](node))
        elif name in HIDING:
            check_visible([node])
    places = map(place_of, objectives.outputs)
    roots = tuple([Edge(numbers[node], output) for node, output in places])
    return Graph([*below], tuple(signature), roots, frozenset(types))


def holds_functions(graph: Graph) -> bool:
    """Whether a user's function, whose backward need not be linear, is in a graph."""
    return any(
        (isinstance(node, BackwardCFunction) or "CppNode" in node.name())
        and not node.name().startswith("CompiledFunction")
        for node in graph.nodes
    )


def records_of(signature: Sequence[Any]) -> tuple[Record, ...]:
    """Spell a signature out: all nodes, parents first."""
    records = []
    entries = iter(signature)
    for first in entries:
        if isinstance(first, int):
            records.append(Record(LEAF, (tuple(next(entries)),), (), first))
            continue
        children, results = next(entries), next(entries)
        inputs: list[Edge | None] = []
        for _ in range(children):
            number = next(entries)
            inputs.append(None if number is None else Edge(number, next(entries)))
        name, shapes = first, []
        for _ in range(results):
            rank = next(entries)
            if rank == NESTED:
                name, rank = NESTED, 0
            shapes.append(tuple([next(entries) for _ in range(rank)]))
        facts = signed(next(entries)) if first in READERS else None
        records.append(Record(name, tuple(shapes), tuple(inputs), facts))
    return tuple(records)


def reaching_of(records: Sequence[Record]) -> set[int]:
    """The nodes that some tracked parameter is below, and these parameters."""
    reaching: set[int] = set()
    for node, record in reversed([*enumerate(records)]):
        if record.name == LEAF:
            if record.facts != FOREIGN:
                reaching.add(node)
        elif any(child is not None and child.node in reaching for child in record.inputs):
            reaching.add(node)
    return reaching


def lowest(records: Sequence[Record], nodes: Collection[int]) -> set[int]:
    """The lowest of some nodes of a graph: no other of them is below."""
    above: set[int] = set()  # nodes with one of the nodes at or below them
    found: set[int] = set()
    for node, record in reversed([*enumerate(records)]):
        has_below = any(child is not None and child.node in above for child in record.inputs)
        if node in nodes and not has_below:
            found.add(node)
        if node in nodes or has_below:
            above.add(node)
    return found

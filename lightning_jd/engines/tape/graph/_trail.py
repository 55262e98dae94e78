"""Follows a graph that looks like an earlier one, without describing it anew.

A step sees the graph of the step before, with other numbers. To compare takes less time than to
write a signature, to hash it and to look it up; and shapes that follow from others need no look,
for which autograd takes longer than for everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd.graph import Node

from lightning_jd.engines._objectives import Output
from lightning_jd.engines._reach import LEAF, place_of
from lightning_jd.engines.tape.graph._node_arguments import READERS
from lightning_jd.engines.tape.graph._records import FOREIGN, NESTED, Graph, Record

#: The Python class of operations that have none of their own.
_ANY = "CppFunction"
#: Operations whose output has a shape that follows from the shapes of some inputs, and from the
#: arguments that are compared: the positions of these inputs, which must be in the graph.
_SHAPED_BY: dict[str, tuple[int, ...]] = {
    f"{name}Backward0": (0,)
    for name in "Clone Elu Gelu LeakyRelu LogSoftmax NativeLayerNorm Permute Relu Select Sigmoid "
    "Silu Softmax T Tanh Transpose".split()
} | {
    "AddBackward0": (0, 1),
    "AddmmBackward0": (1, 2),
    "BmmBackward0": (0, 1),
    "DivBackward0": (0, 1),
    "MmBackward0": (0, 1),
    "MulBackward0": (0, 1),
    "SubBackward0": (0, 1),
}
#: Those of them that need the comparison of arguments.
_BY_ARGUMENTS = {
    f"{name}Backward0" for name in ("NativeLayerNorm", "Permute", "Select", "Transpose")
}


class _Stop(NamedTuple):
    """A node as the trail expects it.

    Attributes:
        kind: Its Python class, which autograd has one of per operation.
        inputs: Where each input of the operation comes from: a node and the number of its output.
        shapes: The shapes of the outputs of the operation; ``None`` if they follow from others.
        read: Reads the arguments that matter, ...
        facts: ... and what they were.
        parameter: Of a leaf, its position among the parameters; ``None`` for an operation.
    """

    kind: type[Any]
    inputs: tuple[tuple[int, int], ...]
    shapes: Sequence[Any] | None
    read: Callable[[Node], Hashable] | None
    facts: Hashable
    parameter: int | None


class Trail:
    """What an earlier walk has met, in its order: a graph, and the same as plain data."""

    def __init__(self, graph: Graph, records: Sequence[Record]) -> None:
        met = list(zip(graph.nodes, records, strict=True))
        self._roots = graph.roots
        #: Whether classes, shapes and arguments tell everything.
        self._is_complete = not any(r.name == NESTED or type(n).__name__ == _ANY for n, r in met)
        self._stops = [_stop(node, record) for node, record in met]

    def follow(self, outputs: Sequence[Output], parameters: Sequence[Tensor]) -> list[Node] | None:
        """The nodes below the losses in the order of the trail; ``None`` if it is another graph."""
        if len(outputs) != len(self._roots) or not self._is_complete:
            return None
        try:
            return self._follow(outputs, parameters)
        except (AttributeError, RuntimeError):  # a node that cannot be asked what others can
            return None

    def _follow(self, outputs: Sequence[Output], parameters: Sequence[Tensor]) -> list[Node] | None:
        nodes: list[Any] = [None]  # in the place of inputs that need no gradient
        for output, (number, place) in zip(outputs, self._roots, strict=True):
            node, output_number = place_of(output)
            if number + 1 == len(nodes):
                nodes.append(node)
            if node is not nodes[number + 1] or output_number != place:
                return None
        tracked = None
        count, listed = len(nodes), nodes.append
        growing = iter(nodes)
        next(growing)
        for node, (kind, inputs, shapes, read, facts, parameter) in zip(  # noqa: B905
            growing, self._stops
        ):
            if type(node) is not kind:
                return None
            if parameter is not None:
                leaf = node.variable
                if parameter == FOREIGN:
                    tracked = tracked or {id(each) for each in parameters}
                    if id(leaf) in tracked:
                        return None
                elif leaf is not parameters[parameter]:
                    return None
                if leaf.shape != shapes:
                    return None
                continue
            children = node.next_functions
            if len(children) != len(inputs):
                return None
            for (child, output_number), (number, place) in zip(children, inputs):  # noqa: B905
                if number == count:  # met for the first time
                    listed(child)
                    count += 1
                if child is not nodes[number] or output_number != place:
                    return None
            if shapes is not None and [each.shape for each in node._input_metadata] != shapes:
                return None
            if read is not None and read(node) != facts:
                return None
        del nodes[0]
        # none is missing, and none was listed twice
        return nodes if len(nodes) == len(self._stops) == len(set(nodes)) else None


def _stop(node: Node, record: Record) -> _Stop:
    if record.name == LEAF:
        assert isinstance(record.facts, int)
        return _Stop(type(node), (), record.shapes[0], None, None, record.facts)
    inputs = tuple(
        (0, 0) if edge is None else (edge.node + 1, edge.output) for edge in record.inputs
    )
    read = READERS.get(record.name)
    deciding = (
        None if read is None and record.name in _BY_ARGUMENTS else _SHAPED_BY.get(record.name)
    )
    is_shaped = deciding is not None and all(record.inputs[k] is not None for k in deciding)
    shapes = None if is_shaped else [list(shape) for shape in record.shapes]
    return _Stop(type(node), inputs, shapes, read, read and read(node), None)

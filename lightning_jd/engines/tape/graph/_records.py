"""The autograd graph below the losses, as data.

A walk gives the nodes, which hold activations, and a signature, which is plain hashable data.
Everything that is *concluded* about a graph is a function of its signature alone. So a conclusion
may be cached under it and can never be stale, and a cache keeps neither activations nor parameters
alive. Index tensors are the one part of a graph that is data of a step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from lightning_jd.engines._graph import HIDING, LEAF, check_visible, nodes_below, place_of
from lightning_jd.engines._objectives import Objectives

Shape = tuple[int, ...]
#: Owners of slices, positions of entries, or values of an index tensor.
Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_MARK = "_lightning_jd_is_constant"


class Constant:
    """Numbers of a plan, as a tensor on any device.

    Args:
        values: The numbers; they must not change.
    """

    def __init__(self, values: Ids | Mask) -> None:
        self._values = values
        self._on: dict[torch.device, Tensor] = {}

    def on(self, device: torch.device) -> Tensor:
        """The tensor on a device; copied there once."""
        found = self._on.get(device)
        if found is None:
            found = self._on[device] = torch.as_tensor(self._values, device=device)
            setattr(found, _MARK, True)
        return found


def is_constant(tensor: Tensor) -> bool:
    """Whether a tensor belongs to a plan."""
    return hasattr(tensor, _MARK)


_WRAP = 2**63


def signed(number: Any) -> Any:
    """Undo the wrap-around of negative integers, which autograd shows as unsigned.

    Example:
        >>> signed(18446744073709551615), signed((0, 18446744073709551614)), signed(None)
        (-1, (0, -2), None)
    """
    kind = type(number)
    if kind is int:
        return number if number < _WRAP else number - 2 * _WRAP
    if kind is tuple or kind is list:
        return tuple([signed(entry) for entry in number])
    return number


Reader = Callable[[Node], Hashable]
#: What reads the arguments of operations that matter to the flow of owners, by name. It runs for
#: every node in every step, so results are raw: :func:`signed` is applied to them once.
READERS: dict[str, Reader] = {}
_version = 0


def table_changed() -> None:
    """The tape was taught an operation, or has forgotten one."""
    global _version
    _version += 1


def table_version() -> int:
    """A number that changes with every table, so that older plans do not fit."""
    return _version


def reader(*names: str) -> Callable[[Node], Hashable]:
    """A function that reads the named arguments, as a tuple."""
    attributes = ["_saved_" + name for name in names]
    get = attrgetter(*attributes)

    def read(node: Node) -> Hashable:
        try:
            found = get(node)
        except AttributeError:  # ``None`` is what this torch does not save
            return tuple([getattr(node, attribute, None) for attribute in attributes])
        return found if len(attributes) > 1 else (found,)

    return read


def is_cast_to_complex(node: Node) -> Hashable:
    """Whether a cast is one between real and complex numbers, which does more than copy."""
    ((below, output),) = node.next_functions
    assert below is not None
    result, source = node._input_metadata[0].dtype, below._input_metadata[output].dtype
    return bool(result.is_complex != source.is_complex)


READERS["ToCopyBackward0"] = is_cast_to_complex


def read_indices(node: Node) -> Hashable:
    """How each axis of ``x[indices]`` is indexed: ``None`` (not), or the rank of its index.

    A mask has the rank -1 - d, where d is the number of axes that it covers. There are no facts of
    indices that would have to be recomputed or loaded.
    """
    if is_hooked(node, "indices"):
        return None
    ranks: list[int | None] = []
    for index in node._saved_indices:  # type: ignore[attr-defined]
        if index is None:
            ranks.append(None)
        else:
            ranks.append(-1 - index.ndim if index.dtype in _MASKS else index.ndim)
    return tuple(ranks)


_MASKS = (torch.bool, torch.uint8)
#: Entries of an index that are read at most; owners behind longer ones are found by experiment.
_READABLE = 1 << 20


class Indices:
    """The values of index tensors, read on demand: the one part of a graph that is data.

    A plan may depend on them, so the ones that were read are part of the key of the plan.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._found: dict[int, tuple[Ids, ...] | None] = {}

    def of(self, node: int) -> tuple[Ids, ...] | None:
        """The indices that an operation has saved.

        A mask is read as the positions of its true entries, one array per axis of the mask. A
        single index has the size 1 along axes that it was expanded along, as for ``scatter_add``.

        Returns:
            ``None`` if they are too long, or would have to be recomputed or loaded.
        """
        if node not in self._found:
            self._found[node] = _index_values(self._nodes[node])
        return self._found[node]

    @property
    def read(self) -> frozenset[int]:
        """The operations whose indices were read."""
        return frozenset(self._found)

    def digest(self, nodes: Iterable[int]) -> Hashable:
        """Equal for equal indices."""
        found: list[Hashable] = []
        for node in sorted(nodes):
            arrays = self.of(node)
            if arrays is None:
                found.append(None)
                continue
            shapes = tuple([array.shape for array in arrays])
            content = hashlib.blake2b(digest_size=16)
            for array in arrays:
                content.update(array.tobytes())
            found.append((shapes, content.digest()))
        return tuple(found)


def _index_values(node: Node) -> tuple[Ids, ...] | None:
    for name in ("index", "indices", "mask"):
        if hasattr(node, "_saved_" + name):
            break
    else:
        return None
    if is_hooked(node, name):
        return None
    saved = getattr(node, "_saved_" + name)
    arrays: list[Ids] = []
    for index in saved if isinstance(saved, tuple) else (saved,):
        if index is None:
            continue
        for axis, stride in enumerate(index.stride()):
            if stride == 0 and name == "index":
                index = index.narrow(axis, 0, min(1, index.shape[axis]))
        if index.numel() > _READABLE:
            return None
        if index.dtype in _MASKS:
            arrays += index.cpu().numpy().nonzero()
        else:
            arrays.append(index.cpu().numpy().astype(np.int64))
    return tuple(arrays)


#: Whether saved tensors show their hooks. Before torch 2.13 they do not, and each may have some.
SHOWS_HOOKS = hasattr(torch._C._autograd.SavedTensor, "unpack_hook")


def is_hooked(node: Node, name: str) -> bool:
    """Whether a saved tensor, or one of several, shows a hook that runs when it is read."""
    raw = getattr(node, "_raw_saved_" + name, None)
    several = raw if isinstance(raw, tuple) else (raw,)
    return any(getattr(one, "unpack_hook", None) is not None for one in several)


def may_be_hooked(node: Node, name: str) -> bool:
    """Whether a saved tensor, or one of several, may be recomputed or loaded when it is read."""
    return not SHOWS_HOOKS or is_hooked(node, name)


def any_hooked(node: Node) -> bool:
    """Whether some saved tensor of a node is recomputed or loaded when it is read."""
    prefix = "_raw_saved_"
    names = [name[len(prefix) :] for name in dir(node) if name.startswith(prefix)]
    return any(is_hooked(node, name) for name in names)


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

    @property
    def parameter(self) -> int | None:
        """The position of a tracked parameter; ``None`` for other nodes."""
        is_tracked = self.name == LEAF and self.facts != FOREIGN
        return self.facts if is_tracked and isinstance(self.facts, int) else None


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
        below = any(child is not None and child.node in reaching for child in record.inputs)
        if below or record.parameter is not None:
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

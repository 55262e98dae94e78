"""The cut: where the graph of each task enters the features, the activations that tasks share."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from lightning_jd.engines import (
    NamedParameters,
    Objectives,
    nodes_below,
    task_roots,
    tasks_above,
)
from lightning_jd.errors import ArgumentError, GraphError

#: A place in the graph: a node and the number of its output.
Place = tuple[Any, int]

#: How a task comes to a place: an operation, the number of its input, and the place.
Entry = tuple[Any, int, Place]

#: Through these an operation sees a parameter in another shape or type.
_VIEWS = {
    "TBackward0",
    "TransposeBackward0",
    "PermuteBackward0",
    "ViewBackward0",
    "ToCopyBackward0",
}


@dataclass(frozen=True)
class Cut:
    """Where gradients are taken, and the entries of each task alone to these places, if known."""

    places: list[Place]
    entries: list[list[Entry]] | None = None


def cut_of(objectives: Objectives, features: str | Tensor | None, named: NamedParameters) -> Cut:
    """Find the features.

    Args:
        objectives: The losses.
        features: An activation; the name of a module, or a pattern of names, whose output gives
            the features (its last operations with a parameter, and those without one that follow,
            up to where the result is used twice or meets something else); or ``None`` for the
            places where tasks part.
        named: The parameters, which modules are known by.
    """
    if isinstance(features, Tensor):
        if features.grad_fn is None:
            raise GraphError(
                "`weights_from` must be an activation of the graph, got a tensor that is not the "
                "result of a differentiated operation."
            )
        edge = get_gradient_edge(features)
        return Cut([(edge.node, edge.output_nr)])
    places = _roots(objectives)
    if features is None:
        return _where_tasks_part(objectives, places)
    return _last_uses(objectives, places, features, named)


def _roots(objectives: Objectives) -> list[Place]:
    """Where the loss of each task leaves the graph."""
    if objectives.kind not in ("tasks", "instances_tasks") or objectives.m < 2:
        raise GraphError(
            "Weights from features must have several losses that are tasks, or instances and "
            f"tasks, got {objectives.m} {objectives.kind.replace('_', ' x ')}. Return a dict or "
            "list of task losses, or a matrix."
        )
    try:
        roots = task_roots(objectives)
    except ArgumentError:  # one tensor, computed together: tasks part in its last operation
        assert isinstance(objectives.losses, Tensor)
        edge = get_gradient_edge(objectives.losses)
        return [(edge.node, edge.output_nr)]
    if None in roots:
        raise GraphError(
            "Weights from features must have losses that depend on something, got a constant."
        )
    return [root for root in roots if root is not None]


def _where_tasks_part(objectives: Objectives, roots: list[Place]) -> Cut:
    below = nodes_below(objectives)
    tasks = tasks_above(below, roots)
    shared = {node for node, bits in tasks.items() if bits & (bits - 1)}
    if len(roots) < 2 or any(node in shared for node, _ in roots):
        raise GraphError(
            "Weights from features must find activations that several tasks depend on, got a graph "
            "in which tasks part only at their losses (as columns of one output, or entries of one "
            f"vector of losses). {_drawn(roots)} Give every task a head and a loss of its own, "
            "name the module that makes the features, or take the weights from the parameters."
        )
    every: list[list[Entry]] = [[] for _ in roots]
    for node, children in below.items():
        if tasks[node] and node not in shared:
            own = every[tasks[node].bit_length() - 1]
            own += [(node, k, place) for k, place in enumerate(children) if place[0] in shared]
    entries = [[entry for entry in own if not _is_leaf(entry[2][0])] for own in every]
    found = dict.fromkeys(place for own in entries for _, _, place in own)
    if not found:
        meetings = len({place for own in every for _, _, place in own})
        raise GraphError(
            "Weights from features must find activations that tasks share, got a graph in which "
            f"they meet in {meetings} parameters only. {_drawn(roots)} Compute the features once "
            "for all tasks, or take the weights from the parameters."
        )
    return Cut(list(found), entries)


def _last_uses(
    objectives: Objectives, roots: list[Place], pattern: str, named: NamedParameters
) -> Cut:
    """The outputs of some modules: behind the last operations that see one of their parameters."""
    wanted = {id(p) for name, p in named if _belongs(name, pattern)}
    if not wanted:
        modules = sorted({name.rpartition(".")[0] or name for name, _ in named})
        listed = ", ".join(map(repr, modules[:12])) + (", ..." if len(modules) > 12 else "")
        raise GraphError(
            "`weights_from` must name a module with parameters, by its name or a pattern, or be "
            f"'features', got {pattern!r}. There are: {listed}."
        )
    direct = {id(p) for name, p in named if name.rpartition(".")[0] == pattern}
    users: dict[Place, list[Any]] = {}
    above = set(roots)  # the places above the modules
    found: dict[Place, bool] = {}  # and whether that is a layer itself, whose output it is
    for node in nodes_below(objectives):
        places = _below(node)
        for place in places:
            users.setdefault(place, []).append(node)
        own = {_parameter(child) for child, _ in places}
        outputs = [(node, k) for k in range(len(node._input_metadata)) if (node, k) in above]
        if own & wanted:
            found |= dict.fromkeys(outputs, bool(own & direct))
        elif outputs:
            above.update(places)
    if not found:
        raise GraphError(
            f"`weights_from` must name a module that the losses depend on, got {pattern!r}, whose "
            f"parameters no loss reaches. {_drawn(roots)}"
        )
    ends = [
        place if is_layer else _end_of_module(place, users, roots)
        for place, is_layer in found.items()
    ]
    return Cut(list(dict.fromkeys(ends)))


def _end_of_module(place: Place, users: dict[Place, list[Any]], roots: list[Place]) -> Place:
    """What operations without parameters, such as an activation, make of a result before its use.

    The losses are no such use: if nothing parts or joins above, the place stays.
    """
    start = place
    while True:
        if place in roots:
            return start
        above = users.get(place, [])
        if len(above) != 1 or len(_below(above[0])) != 1 or len(above[0]._input_metadata) != 1:
            return place
        place = (above[0], 0)


def _belongs(name: str, pattern: str) -> bool:
    """Whether a parameter is one of a module, or of a module inside of it."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def _parameter(node: Any) -> int | None:
    """The leaf that a node stands for, as it is or as a view; ``None`` for other nodes."""
    while type(node).__name__ in _VIEWS:
        node = node.next_functions[0][0]
    return id(node.variable) if node is not None and _is_leaf(node) else None


def _is_leaf(node: Any) -> bool:
    return type(node).__name__ == "AccumulateGrad"


def _below(node: Any) -> list[Place]:
    return [place for place in node.next_functions if place[0] is not None]


def _drawn(roots: list[Place], shown: int = 4) -> str:
    """The first steps down from the first tasks, by the names of their nodes."""
    lines = []
    for root, _ in roots[:shown]:
        path: list[str] = []
        node = root
        while node is not None and len(path) < 8:
            path.append(type(node).__name__.removesuffix("0").removesuffix("Backward"))
            node = next((below for below, _ in _below(node)), None)
        lines.append(" -> ".join(path))
    counted = Counter(lines)
    return "The graph: " + "; ".join(f"{line} ({n} times)" for line, n in counted.items()) + "."

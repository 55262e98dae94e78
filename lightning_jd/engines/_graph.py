"""The autograd graph of the losses: walked once per step, and differentiated."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from lightning_jd.engines._hooks import hook_history, hooks_silenced
from lightning_jd.engines._objectives import Objectives, Output, Term
from lightning_jd.errors import ArgumentError, GraphError

LEAF = "torch::autograd::AccumulateGrad"
#: Nodes of reentrant checkpoints, which stand for a piece of the graph that is not there yet.
HIDING = frozenset({"CheckpointFunctionBackward"})
_engine: Any = torch.autograd.Variable._execution_engine
#: An output of a node.
Place = tuple[Node, int]
#: What the inputs of a node were computed by, as ``next_functions`` tells.
Children = tuple[tuple[Node | None, int], ...]


def nodes_below(objectives: Objectives) -> dict[Node, Children]:
    """All nodes of the graph of the losses, parents first; walked once for all who need it."""
    found: dict[str, Any] = vars(objectives)
    if "below" not in found:
        found["below"] = walked([place_of(output)[0] for output in objectives.outputs])
    below: dict[Node, Children] = found["below"]
    return below


def walked(roots: Sequence[Node], within: Collection[Node] | None = None) -> dict[Node, Children]:
    """All nodes below the roots, each after everything that depends on it, with its children.

    Args:
        roots: Where to begin.
        within: The nodes to list; the others end the walk.
    """
    order: list[Node] = []
    known: dict[Node, Children] = {}
    stack: list[Node | None] = [*roots]
    while stack:
        node = stack.pop()
        if node is None:  # everything below the next one is listed
            finished = stack.pop()
            assert finished is not None
            order.append(finished)
        elif node not in known and (within is None or node in within):
            children = known[node] = node.next_functions  # read once, for that is slow
            if not children:
                order.append(node)
                continue
            stack += (node, None)
            for child, _ in children:
                if child is not None and child not in known:
                    stack.append(child)
    return {node: known[node] for node in reversed(order)}


def tasks_above(below: Mapping[Node, Children], roots: Sequence[Place | None]) -> dict[Node, int]:
    """The tasks that depend on each node, as the bits of an integer, bit t for task t.

    Args:
        below: The graph, parents first.
        roots: Where the loss of each task was computed; ``None`` for a constant.
    """
    masks = dict.fromkeys(below, 0)
    for task, root in enumerate(roots):
        if root is not None:
            masks[root[0]] |= 1 << task
    for node, children in below.items():
        tasks = masks[node]
        for child, _ in children:
            if child is not None:
                masks[child] |= tasks
    return masks


def tasks_reaching(objectives: Objectives) -> dict[int, int]:
    """Find the tasks whose loss depends on each leaf.

    Args:
        objectives: Tasks: separate scalars, or a tensor that was stacked from one loss per task.

    Returns:
        ``id`` of a leaf tensor to the set of tasks, bit t for task t. A leaf that is not in there
        is reached by none.

    Raises:
        ArgumentError: If the losses of the tasks cannot be told apart in the graph.
    """
    roots, below = task_roots(objectives), nodes_below(objectives)
    masks = tasks_above(below, roots)
    _check_separate(roots, below, masks)
    return {id(leaf): masks[node] for node, leaf in leaves_of(below) if masks[node]}


def _check_separate(
    roots: list[Place | None], below: Mapping[Node, Children], masks: Mapping[Node, int]
) -> None:
    """Raise if tasks leave one function by different outputs: the tasks below it are unknown."""
    customs = [node for node in below if isinstance(node, BackwardCFunction)]
    if not customs:
        return
    entries: dict[Node, dict[int, int]] = {node: {} for node in customs}  # tasks by output
    given = [(*root, 1 << task) for task, root in enumerate(roots) if root is not None]
    passed = [(*edge, masks[node]) for node, children in below.items() for edge in children]
    for node, output, tasks in (*given, *passed):
        if node in entries:
            by_output = entries[node]
            by_output[output] = by_output.get(output, 0) | tasks
    for node, by_output in entries.items():
        if len(set(by_output.values())) > 1:
            raise ArgumentError(
                "'shared' parameters can be found only if the graph shows which task reaches which "
                "parameter, but the losses of several tasks come out of one compiled or custom "
                f"function ({node.name()}). "
                "Compile trunk and heads separately, or select the shared parameters by a pattern."
            )


def leaves_of(below: Iterable[Node]) -> list[tuple[Node, Tensor]]:
    """The nodes that are leaves, and their tensors."""
    return [
        (node, node.variable)  # type: ignore[attr-defined]  # AccumulateGrad has it
        for node in below
        if node.name() == LEAF
    ]


def leaves_reached(objectives: Objectives) -> set[int]:
    """The ``id`` of every leaf tensor that some loss depends on.

    Raises:
        GraphError: If reentrant checkpointing hides a part of the graph.
    """
    below = nodes_below(objectives)
    check_visible(below)
    return {id(leaf) for _, leaf in leaves_of(below)}


def holds_custom(objectives: Objectives) -> bool:
    """Whether a function that is written in Python, and may do anything, is in the graph."""
    return any(isinstance(node, BackwardCFunction) for node in nodes_below(objectives))


def holds_compiled(objectives: Objectives) -> bool:
    """Whether a function that ``torch.compile`` has made is in the graph of the losses."""
    return any(node.name().startswith("CompiledFunction") for node in nodes_below(objectives))


def holds_hooks(objectives: Objectives) -> bool:
    """Whether there may be a hook of a user in the graph of the losses."""
    return hook_history.count(nodes_below(objectives)) > 0


def place_of(output: Output) -> Place:
    """Where something that is differentiated was computed."""
    if isinstance(output, Tensor) and (node := output.grad_fn) is not None:
        return node, output.output_nr  # a tenth of the time of `get_gradient_edge`
    edge = output if isinstance(output, GradientEdge) else get_gradient_edge(output)
    return edge.node, edge.output_nr


def check_visible(nodes: Iterable[Node]) -> None:
    """Raise if a node stands for a piece of the graph that is not there yet.

    Raises:
        GraphError: If one comes from reentrant checkpointing.
    """
    if any(node.name() in HIDING for node in nodes):
        raise GraphError(
            "The whole graph of the losses must be visible, but reentrant checkpointing hides the "
            "parameters inside it. Call `torch.utils.checkpoint.checkpoint` with "
            "`use_reentrant=False`."
        )


def mark_as_freed(objectives: Objectives) -> None:
    """Let :func:`check_not_freed` refuse these losses, whether or not autograd has freed them."""
    for output in objectives.outputs:
        node, _ = place_of(output)
        if node.next_functions:  # a leaf has no graph
            node.metadata[_FREED] = True  # type: ignore[index]  # a dict, typed as a method


def check_not_freed(objectives: Objectives) -> None:
    """Raise if losses were differentiated before, and their graph was not to be kept.

    Raises:
        GraphError: If so.
    """
    nodes: list[Any] = [place_of(output)[0] for output in objectives.outputs]
    if any(_FREED in node.metadata for node in nodes):
        raise GraphError(
            "Losses must be differentiated once, unless their graph is kept, got losses that were "
            "differentiated before. Pass `retain_graph=True` the first time."
        )


_FREED = "lightning_jd: freed"


def task_roots(objectives: Objectives) -> list[Place | None]:
    """Where the loss of each task leaves the graph: a node and the number of its output.

    Raises:
        ArgumentError: If the losses of the tasks cannot be told apart in the graph.
    """
    if isinstance(objectives.losses, tuple):
        return [_unstacked(loss) for loss in objectives.losses]
    if objectives.kind != "instances":
        axis = 0 if objectives.kind == "tasks" else 1
        if (node := objectives.losses.grad_fn) is not None and _stacks_along(node, axis):
            return [_edge(node, task) for task in range(len(node.next_functions))]
    raise ArgumentError(
        "'shared' parameters are those of several tasks, got one tensor of losses of kind "
        f"{objectives.kind!r}. Return a dict or list of scalars, one per task, or select the "
        "shared parameters by a pattern."
    )


def _unstacked(loss: Tensor | Term) -> Place | None:
    """Look through a `stack` of all losses of which this loss is one entry."""
    if isinstance(loss, Term):
        return loss.edge.node, loss.edge.output_nr
    node, position = place_of(loss)
    below = node.next_functions[0][0] if node.next_functions else None
    if below is not None and _stacks_along(below, 0):
        if node.name() == "UnbindBackward0":
            return _edge(below, position)
        if node.name() == "SelectBackward0" and loss.ndim == 0:
            index: int = node._saved_index  # type: ignore[attr-defined]
            return _edge(below, index)
    return node, position


def _stacks_along(node: Node, axis: int) -> bool:
    return node.name() == "StackBackward0" and node._saved_dim == axis  # type: ignore[attr-defined]


def _edge(node: Node, position: int) -> Place | None:
    child, output = node.next_functions[position]
    return None if child is None else (child, output)


def gradients_of(
    outputs: Sequence[Output],
    weights: Sequence[Tensor | None],
    targets: Sequence[Tensor | GradientEdge],
    *,
    retain_graph: bool = True,
) -> tuple[Tensor | None, ...]:
    """The gradient of the weighted sum of some outputs.

    Autograd's engine is called as ``torch.autograd.grad`` calls it, after checks that are made here
    by construction: these cost as much as a small layer, and import torch's machinery for symbolic
    shapes, which takes a second and 45 MB.

    Args:
        outputs: What to differentiate; those without a graph are left out.
        weights: One per output, of its shape and type; ``None`` is one everywhere, for tensors.
        targets: Parameters, whose hooks are silenced, or outputs of nodes.
        retain_graph: Whether the graph is kept.
    """
    pairs = [
        (output, torch.ones_like(output) if weight is None else weight.to(output.dtype))
        if isinstance(output, Tensor)
        else (output, weight)
        for output, weight in zip(outputs, weights, strict=True)
        if isinstance(output, GradientEdge) or output.requires_grad
    ]
    with hooks_silenced([target for target in targets if isinstance(target, Tensor)]):
        found: tuple[Tensor | None, ...] = _engine.run_backward(
            tuple([output for output, _ in pairs]),
            tuple([weight for _, weight in pairs]),
            retain_graph,
            False,  # no graph of the gradients
            tuple(targets),
            True,  # targets may be unreachable
            accumulate_grad=False,
        )
    return found

"""Backward passes that stop on the way, or read saved tensors, or run one operation alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node

from lightning_jd.engines._graph import gradients_of
from lightning_jd.engines._hooks import hook_history
from lightning_jd.engines.tape.graph._records import Edge, Graph, may_be_hooked

#: The gradients at the outputs of a node; ``None`` where none arrives.
Cotangents = tuple[Tensor | None, ...]


def local_vjp(node: Node, cotangents: Sequence[Tensor | None]) -> Cotangents:
    """The gradient at every input of one operation, for given gradients at its outputs.

    The operation is differentiated alone: nothing below it runs.

    Returns:
        One gradient per entry of ``node.next_functions``.
    """
    if isinstance(node, BackwardCFunction):
        return _custom_vjp(node, cotangents)
    call: Any = node  # typed as if it could not be called
    found = call(*cotangents)
    return found if isinstance(found, tuple) else (found,)


def _custom_vjp(node: Any, cotangents: Sequence[Tensor | None]) -> Cotangents:
    """:func:`local_vjp` of a ``torch.autograd.Function``, called as autograd calls it.

    Outputs that are not used have a gradient of zeros. There is one result per *argument* of the
    function, but one edge per *tensor* among them; those that need a gradient come in the same
    order in both.
    """
    metadata = node._input_metadata
    defined = [
        torch.zeros(described.shape, dtype=described.dtype, device=described.device)
        if cotangent is None
        else cotangent
        for cotangent, described in zip(cotangents, metadata, strict=True)
    ]
    found = node.apply(*defined)
    results = found if isinstance(found, tuple) else (found,)
    needed = iter(
        [result for result, needs in zip(results, node.needs_input_grad, strict=True) if needs]
    )
    return tuple([None if child is None else next(needed) for child, _ in node.next_functions])


def run_pass(
    graph: Graph,
    losses: Tensor,
    weights: Tensor,
    nodes: Collection[int],
    ends: Sequence[Edge],
    consume: Callable[[int, Cotangents], None],
    *,
    retain_graph: bool = True,
) -> None:
    """Hand the gradients at the outputs of each node to ``consume``, as soon as they are complete.

    Gradients are captured at ``ends``, the outputs of the lowest nodes, so that no gradient of a
    weight is computed. Hooks on all other nodes hand over what enters these, so that nothing is
    kept alive longer than in an ordinary pass.
    """
    lowest = {end.node for end in ends}
    without_autograd = torch.no_grad()(consume)
    with hook_history.own():
        handles = [
            graph.nodes[node].register_prehook(partial(without_autograd, node))
            for node in nodes
            if node not in lowest
        ]
    try:
        found = captured(graph, losses, weights, ends, retain_graph=retain_graph)
    finally:
        for handle in handles:
            handle.remove()
    for node in list(found):
        consume(node, found.pop(node))


def captured(
    graph: Graph,
    losses: Tensor,
    weights: Tensor | None,
    edges: Sequence[Edge],
    *,
    retain_graph: bool = True,
) -> dict[int, Cotangents]:
    """The gradients at the outputs of some nodes, all at once, by one call of autograd."""
    gradients = gradients_of(
        [losses],
        [weights],
        [GradientEdge(graph.nodes[node], output) for node, output in edges],
        retain_graph=retain_graph,
    )
    found: dict[int, Cotangents] = {}
    for (node, _), gradient in zip(edges, gradients, strict=True):
        found[node] = (*found.get(node, ()), gradient)
    return found


def read_ahead(wanted: Iterable[tuple[int, Node, Sequence[str]]]) -> dict[int, dict[str, Any]]:
    """Read saved tensors that are recomputed or loaded when they are read.

    Non-reentrant checkpointing gives a saved tensor out once per backward pass. Reading it next to
    the pass that consumes it would break that pass, so it is read in a pass of its own, all of it
    at once, so that every checkpoint is recomputed once only.

    Returns:
        Per key, the saved tensors that have such a hook.
    """
    hooked = [
        (key, node, name)
        for key, node, names in wanted
        for name in names
        if may_be_hooked(node, name)
    ]
    found: dict[int, dict[str, Any]] = {}
    if hooked:

        def read() -> None:
            for key, node, name in hooked:
                found.setdefault(key, {})[name] = getattr(node, "_saved_" + name)

        in_own_pass(read)
    return found


def in_own_pass(read: Callable[[], None]) -> None:
    """Call a function that reads saved tensors in a backward pass that does nothing else."""
    with torch.enable_grad():
        seed = torch.zeros((), requires_grad=True)
        end = seed.clone()
    assert end.grad_fn is not None
    with hook_history.own():
        end.grad_fn.register_prehook(lambda _: read())
    torch.autograd.grad(end, seed)

"""One backward pass that stops at the operations in question and computes no weight gradient."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from lightning_jd.engines._hooks import hook_history
from lightning_jd.engines.tape.graph import Edge, Graph, gradients_of, may_be_hooked

Cotangents = tuple[Tensor | None, ...]


def run(
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

    Gradients are captured at the lowest nodes only. All others are executed on the way there, and
    hooks look at what enters them, so that nothing is kept alive longer than in an ordinary pass.
    ``ends`` are the outputs of the lowest nodes.
    """
    lowest = {end.node for end in ends}
    with hook_history.own():
        handles = [
            graph.nodes[node].register_prehook(_hook(partial(consume, node)))
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


def _hook(consume: Callable[[Cotangents], None]) -> Callable[[Cotangents], None]:
    def hook(cotangents: Cotangents) -> None:
        with torch.no_grad():
            consume(cotangents)

    return hook


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

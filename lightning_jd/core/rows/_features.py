"""The features: where the graph of one task enters what it shares with others."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from lightning_jd.engines import Objectives
from lightning_jd.errors import GraphError


def features_gramian(objectives: Objectives, scale: float | Tensor = 1.0) -> Tensor:
    """The Gramian of the gradients of the losses at the features, shape (m, m).

    Every loss is differentiated down to there and no further.

    Args:
        objectives: The losses, one scalar per task; their graph is kept.
        scale: Losses are multiplied by it before they are differentiated, and gradients divided.

    Raises:
        GraphError: If the losses are not tasks of their own, or share parameters only.

    Example:
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> z = 2 * x
        >>> features_gramian(Objectives.of([z[0], z.sum()]))  # of (1, 0) and (1, 1)
        tensor([[1., 1.],
                [1., 2.]])
    """
    edges = features_of(objectives)
    rows = []
    for i in range(objectives.m):
        output, one = objectives.row(i)
        found = torch.autograd.grad(
            (output,),  # type: ignore[arg-type]  # tensors and edges may be mixed
            edges,
            (one * scale,),
            retain_graph=True,
            allow_unused=True,
        )
        rows.append(found)
    wide = objectives.dtype == torch.float64
    dtype = torch.float64 if wide else torch.float32
    G = torch.zeros(objectives.m, objectives.m, dtype=dtype, device=objectives.device)
    for column in zip(*rows, strict=True):  # one feature at a time
        some = next((part for part in column if part is not None), None)
        if some is None:
            continue
        parts = [torch.zeros_like(some) if part is None else part for part in column]
        J = torch.stack([part.reshape(-1).to(dtype) for part in parts])
        G += (J @ J.T).to(G.device)
    return G / scale**2


def check_overlap(gramian: Tensor) -> Tensor:
    """Return the Gramian of the features, unless no two tasks have to do with each other there.

    Raises:
        GraphError: If all inner products of two gradients are exactly zero, and no gradient is:
            then tasks part in the last operation, as the columns of one output do.
    """
    apart = gramian - torch.diag(gramian.diagonal())
    if len(gramian) > 1 and not bool(apart.any()) and bool((gramian.diagonal() > 0).all()):
        raise GraphError(
            "Weights from features must find activations that several tasks depend on, got a graph "
            "in which tasks part only at their losses (as columns of one output, or entries of one "
            "vector of losses). Give every task a head and a loss of its own, or choose the "
            "aggregator without 'fromfeatures'."
        )
    return gramian


def features_of(objectives: Objectives) -> list[GradientEdge]:
    """The places in the graph where tasks enter what at least two of them share.

    Raises:
        GraphError: As :func:`features_gramian`.
    """
    if objectives.kind != "tasks" or objectives.m < 2 or isinstance(objectives.losses, Tensor):
        raise GraphError(
            "Weights from features must have several losses that are tasks, each a scalar of its "
            f"own, got {objectives.m} {objectives.kind.replace('_', ' x ')}. Return a dict or list "
            "of task losses."
        )
    places = [_place(objectives.row(i)[0]) for i in range(objectives.m)]
    roots = [node for node, _ in places]
    shared = _closure(_meetings(roots))
    entries = [edge for place in places for edge in _entries(place, shared)]
    found = dict.fromkeys(entry for entry in entries if not _is_parameter(entry[0]))
    if not found:
        raise GraphError(
            "Weights from features must find activations that tasks share, got a graph in which "
            f"they meet in {len(set(entries))} parameters only. {_drawn(roots)} Compute the "
            "features once for all tasks, or choose the aggregator without 'fromfeatures'."
        )
    return [GradientEdge(node, index) for node, index in found]


def _place(output: Tensor | GradientEdge) -> tuple[Any, int]:
    node = output.node if isinstance(output, GradientEdge) else output.grad_fn
    return node, output.output_nr


def _is_parameter(node: Any) -> bool:
    return type(node).__name__ == "AccumulateGrad"


def _below(node: Any) -> list[tuple[Any, int]]:
    return [(below, index) for below, index in node.next_functions if below is not None]


def _meetings(roots: list[Any]) -> set[Any]:
    """Nodes at which a walk from one task meets what an earlier one has seen."""
    owner: dict[Any, int] = {}
    met: set[Any] = set()
    for task, root in enumerate(roots):
        waiting = [root]
        while waiting:
            node = waiting.pop()
            if node in owner:
                if owner[node] != task:
                    met.add(node)
                continue
            owner[node] = task
            waiting += [below for below, _ in _below(node)]
    return met


def _closure(nodes: set[Any]) -> set[Any]:
    """The nodes and all below them."""
    seen: set[Any] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += [below for below, _ in _below(node)]
    return seen


def _entries(place: tuple[Any, int], shared: set[Any]) -> list[tuple[Any, int]]:
    """The edges by which one task enters what is shared."""
    root, _ = place
    if root in shared:  # the loss itself is
        return [place]
    found, seen, waiting = [], {root}, [root]
    while waiting:
        for below, index in _below(waiting.pop()):
            if below in shared:
                found.append((below, index))
            elif below not in seen:
                seen.add(below)
                waiting.append(below)
    return found


def _drawn(roots: list[Any], shown: int = 4) -> str:
    """The first steps down from the first tasks, by the names of their nodes."""
    lines = []
    for root in roots[:shown]:
        path: list[str] = []
        node = root
        while node is not None and len(path) < 8:
            path.append(type(node).__name__.removesuffix("0").removesuffix("Backward"))
            node = next((below for below, _ in _below(node)), None)
        lines.append(" -> ".join(path))
    counted = Counter(lines)
    return "The graph: " + "; ".join(f"{line} ({n} times)" for line, n in counted.items()) + "."

"""Tasks with heads of their own on a shared trunk: one vectorised pass through the trunk for all.

Above the trunk every operation belongs to one task, so that one pass over all losses gives the
gradients of each task where its head meets the trunk. From there on, the gradients of all tasks go
down together.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from lightning_jd.engines._hooks import hooks_silenced
from lightning_jd.engines.tape._differentiate import gradients_of
from lightning_jd.engines.tape._graph import Edge, Graph, Record, local_vjp
from lightning_jd.engines.tape._plan import parents_first


@dataclass(frozen=True)
class Junction:
    """An input of an operation of one task that comes from the trunk.

    Attributes:
        task: The task.
        node: The operation.
        slot: The input.
        edge: Where it comes from.
    """

    task: int
    node: int
    slot: int
    edge: Edge


def junctions(records: Sequence[Record], roots: Sequence[Edge]) -> list[Junction]:
    """Where heads meet the trunk; nothing if the tasks cannot be told apart above it.

    Args:
        records: The graph.
        roots: One per task.
    """
    tasks = [0] * len(records)  # sets of tasks, as bits
    for task, root in enumerate(roots):
        if tasks[root.node]:
            return []  # several losses come out of one operation
        tasks[root.node] = 1 << task
    found = []
    order = parents_first(records, [root.node for root in roots])
    for node in order:
        for child in records[node].inputs:
            if child is not None:
                tasks[child.node] |= tasks[node]
    for node in order:
        if _is_single(tasks[node]):
            for slot, child in enumerate(records[node].inputs):
                if child is not None and not _is_single(tasks[child.node]):
                    found.append(Junction(tasks[node].bit_length() - 1, node, slot, child))
    return found


def _is_single(tasks: int) -> bool:
    return tasks & (tasks - 1) == 0


def gradients_of_tasks(
    graph: Graph,
    records: Sequence[Record],
    meeting: Sequence[Junction],
    losses: Sequence[Tensor],
    weight: Tensor,
    targets: Sequence[Tensor | GradientEdge],
) -> list[Tensor | None]:
    """The gradients of all tasks at some places in the trunk, shape (tasks, ...) each.

    Args:
        graph: The graph.
        records: Its records.
        meeting: Where heads meet the trunk.
        losses: One per task.
        weight: What the losses are multiplied by.
        targets: Places in the trunk.

    Raises:
        RuntimeError: If some operation cannot be vectorised.
    """
    tops = list(dict.fromkeys(junction.node for junction in meeting))
    edges = [Edge(node, k) for node in tops for k in range(len(records[node].shapes))]
    above = gradients_of(
        losses,
        [weight] * len(losses),
        [GradientEdge(graph.nodes[node], output) for node, output in edges],
    )
    cotangents: dict[int, list[Tensor | None]] = {}
    for (node, _), gradient in zip(edges, above, strict=True):
        cotangents.setdefault(node, []).append(gradient)
    arriving: dict[Edge, Tensor] = {}
    below: dict[int, tuple[Tensor | None, ...]] = {}
    for task, node, slot, edge in ((j.task, j.node, j.slot, j.edge) for j in meeting):
        if all(gradient is None for gradient in cotangents[node]):
            continue
        if node not in below:
            below = {node: local_vjp(graph.nodes[node], cotangents[node])}
        gradient = below[node][slot]
        if gradient is not None:
            _add(arriving, edge, graph, records, len(losses))[task] += gradient.sum_to_size(
                records[edge.node].shapes[edge.output]
            )
    with hooks_silenced(t for t in targets if isinstance(t, Tensor)), warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*batching rule.*")
        return list(
            torch.autograd.grad(
                [GradientEdge(graph.nodes[edge.node], edge.output) for edge in arriving],
                targets,
                list(arriving.values()),
                retain_graph=True,
                allow_unused=True,
                is_grads_batched=True,
            )
        )


def _add(
    arriving: dict[Edge, Tensor], edge: Edge, graph: Graph, records: Sequence[Record], tasks: int
) -> Tensor:
    if edge not in arriving:
        described = graph.nodes[edge.node]._input_metadata[edge.output]  # type: ignore[attr-defined]
        shape = records[edge.node].shapes[edge.output]
        arriving[edge] = torch.zeros(
            tasks, *shape, dtype=described.dtype, device=described.device
        )
    return arriving[edge]

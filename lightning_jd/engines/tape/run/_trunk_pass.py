"""One vectorised pass through the trunk for all tasks.

Above the trunk every operation belongs to one task, so that one pass over all losses gives the
gradients of each task where its head meets the trunk, and those of its head. From there on, the
gradients of all tasks go down together.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from lightning_jd.engines._hooks import hooks_silenced
from lightning_jd.engines._objectives import Output
from lightning_jd.engines.tape.graph import Edge, Graph, Record, gradients_of, local_vjp
from lightning_jd.engines.tape.plan import Trunk

Place = Tensor | GradientEdge
TOGETHER = 4  # tasks whose gradients go down together


def gradients_of_tasks(
    graph: Graph,
    records: Sequence[Record],
    trunk: Trunk,
    losses: Sequence[Output],
    weights: Sequence[Tensor],
    places: Sequence[tuple[int, Place]],
) -> list[tuple[int | None, Tensor | None]]:
    """The gradients of all tasks at some places.

    Args:
        graph: The graph.
        records: Its records.
        trunk: What is shared.
        losses: One per task.
        weights: What each of them is multiplied by.
        places: Numbers of nodes, and what to differentiate with respect to there.

    Returns:
        For each place a task and its gradient, or ``None`` and the gradients of all tasks, shape
        (tasks, ...). The gradient is ``None`` where no task arrives.

    Raises:
        RuntimeError: If some operation cannot be vectorised.
    """
    tops = list(dict.fromkeys(junction.node for junction in trunk.junctions))
    edges = [Edge(node, k) for node in tops for k in range(len(records[node].shapes))]
    own = [place for node, place in places if trunk.task_of[node] is not None]
    above = gradients_of(
        losses,
        weights,
        [*[GradientEdge(graph.nodes[node], output) for node, output in edges], *own],
    )
    cotangents: dict[int, list[Tensor | None]] = {}
    for (node, _), gradient in zip(edges, above, strict=False):
        cotangents.setdefault(node, []).append(gradient)
    shared = [place for node, place in places if trunk.task_of[node] is None]
    alone = iter(above[len(edges) :])
    together = iter(_downwards(graph, records, trunk, cotangents, shared, len(losses)))
    return [
        (task, next(together if task is None else alone))
        for task in (trunk.task_of[node] for node, _ in places)
    ]


def _downwards(
    graph: Graph,
    records: Sequence[Record],
    trunk: Trunk,
    cotangents: dict[int, list[Tensor | None]],
    places: Sequence[Place],
    tasks: int,
) -> list[Tensor | None]:
    parts: list[list[Tensor | None]] = [[] for _ in places]  # by place and group of tasks
    groups = [
        range(begin, min(tasks, begin + TOGETHER))
        for begin in range(0, tasks if places else 0, TOGETHER)
    ]
    with hooks_silenced(p for p in places if isinstance(p, Tensor)), warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*batching rule.*")
        for some in groups:
            arriving = _arriving(graph, records, trunk, cotangents, some)
            found: Sequence[Tensor | None] = [None] * len(places)
            if arriving:
                found = torch.autograd.grad(
                    [GradientEdge(graph.nodes[edge.node], edge.output) for edge in arriving],
                    places,  # type: ignore[arg-type]  # parameters and edges may be mixed
                    list(arriving.values()),
                    retain_graph=True,
                    allow_unused=True,
                    is_grads_batched=True,
                )
            for part, gradients in zip(parts, found, strict=True):
                part.append(gradients)
    return [_joined(part, [len(some) for some in groups]) for part in parts]


def _joined(parts: Sequence[Tensor | None], lengths: Sequence[int]) -> Tensor | None:
    """The gradients of all tasks from those of some at a time; zero for those that have none."""
    like = next((part for part in parts if part is not None), None)
    if like is None or len(parts) == 1:
        return like
    shape = like.shape[1:]
    return torch.cat(
        [
            like.new_zeros(length, *shape) if part is None else part
            for part, length in zip(parts, lengths, strict=True)
        ]
    )


def _arriving(
    graph: Graph,
    records: Sequence[Record],
    trunk: Trunk,
    cotangents: dict[int, list[Tensor | None]],
    tasks: range,
) -> dict[Edge, Tensor]:
    """The gradients of some tasks where they enter the trunk, from those in the heads."""
    found: dict[Edge, list[Tensor | None]] = {}
    below: dict[int, tuple[Tensor | None, ...]] = {}
    for junction in trunk.junctions:
        node, edge = junction.node, junction.edge
        if junction.task not in tasks or all(D is None for D in cotangents[node]):
            continue
        if node not in below:
            below = {node: local_vjp(graph.nodes[node], cotangents[node])}
        gradient = below[node][junction.slot]
        if gradient is not None:
            rows = found.setdefault(edge, [None] * len(tasks))
            row, k = gradient.sum_to_size(records[edge.node].shapes[edge.output]), junction.task
            known = rows[k - tasks.start]
            rows[k - tasks.start] = row if known is None else known + row
    return {edge: _stacked(rows) for edge, rows in found.items()}


def _stacked(rows: Sequence[Tensor | None]) -> Tensor:
    """One row per task; zero where there is none, but for one at least."""
    like = next(row for row in rows if row is not None)
    return torch.stack([torch.zeros_like(like) if row is None else row for row in rows])

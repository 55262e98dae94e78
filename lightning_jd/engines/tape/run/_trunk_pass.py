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
    blocks: list[Tensor | None] = [None] * len(places)
    with hooks_silenced(p for p in places if isinstance(p, Tensor)), warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*batching rule.*")
        for begin in range(0, tasks if places else 0, TOGETHER):
            some = range(begin, min(tasks, begin + TOGETHER))
            arriving = _arriving(graph, records, trunk, cotangents, some)
            if not arriving:
                continue
            found = torch.autograd.grad(
                [GradientEdge(graph.nodes[edge.node], edge.output) for edge in arriving],
                places,  # type: ignore[arg-type]  # parameters and edges may be mixed
                list(arriving.values()),
                retain_graph=True,
                allow_unused=True,
                is_grads_batched=True,
            )
            for j, gradients in enumerate(found):
                if gradients is not None:
                    block = blocks[j]
                    if block is None:
                        block = blocks[j] = gradients.new_zeros(tasks, *gradients.shape[1:])
                    block[some.start : some.stop] = gradients
    return blocks


def _arriving(
    graph: Graph,
    records: Sequence[Record],
    trunk: Trunk,
    cotangents: dict[int, list[Tensor | None]],
    tasks: range,
) -> dict[Edge, Tensor]:
    """The gradients of some tasks where they enter the trunk, from those in the heads."""
    found: dict[Edge, Tensor] = {}
    below: dict[int, tuple[Tensor | None, ...]] = {}
    for junction in trunk.junctions:
        node, edge = junction.node, junction.edge
        if junction.task not in tasks or all(D is None for D in cotangents[node]):
            continue
        if node not in below:
            below = {node: local_vjp(graph.nodes[node], cotangents[node])}
        gradient = below[node][junction.slot]
        if gradient is not None:
            shape = records[edge.node].shapes[edge.output]
            if edge not in found:
                found[edge] = gradient.new_zeros(len(tasks), *shape)
            found[edge][junction.task - tasks.start] += gradient.sum_to_size(shape)
    return found

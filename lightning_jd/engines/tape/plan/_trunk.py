"""Tasks with heads of their own on a shared trunk: which operations belong to which task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_jd.engines.tape.graph import Edge, Record


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


@dataclass(frozen=True)
class Trunk:
    """Which operations belong to one task, and where these meet the others.

    Attributes:
        task_of: The task of each node; ``None`` for nodes that several tasks depend on.
        junctions: Where heads meet the trunk.
    """

    task_of: list[int | None]
    junctions: list[Junction]


def find_trunk(
    records: Sequence[Record], order: Sequence[int], roots: Sequence[Edge]
) -> Trunk | None:
    """Tell heads and trunk apart in a graph with one root per task.

    Returns:
        ``None`` if losses of several tasks come out of one operation, or nothing is shared.
    """
    tasks = [0] * len(records)  # sets of tasks, as bits
    for task, root in enumerate(roots):
        if tasks[root.node]:
            return None
        tasks[root.node] = 1 << task
    for node in order:
        for child in records[node].inputs:
            if child is not None:
                tasks[child.node] |= tasks[node]
    task_of: list[int | None] = [
        None if bits & (bits - 1) else bits.bit_length() - 1 for bits in tasks
    ]
    junctions = [
        Junction(own, node, slot, child)
        for node in order
        if (own := task_of[node]) is not None
        for slot, child in enumerate(records[node].inputs)
        if child is not None and task_of[child.node] is None
    ]
    return Trunk(task_of, junctions) if junctions else None

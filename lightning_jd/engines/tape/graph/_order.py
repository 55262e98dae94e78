"""The order of the operations of a graph, and what lies below what."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from lightning_jd.engines._reach import LEAF
from lightning_jd.engines.tape.graph._records import FOREIGN, Record


def parents_first(records: Sequence[Record], roots: Sequence[int]) -> tuple[int, ...]:
    """All nodes below the roots, each after every node that depends on it."""
    waiting = [0] * len(records)
    for record in records:
        for child in record.inputs:
            if child is not None:
                waiting[child.node] += 1
    ready = [node for node in dict.fromkeys(roots) if waiting[node] == 0]
    order: list[int] = []
    while ready:
        node = ready.pop()
        order.append(node)
        for child in records[node].inputs:
            if child is not None:
                waiting[child.node] -= 1
                if waiting[child.node] == 0:
                    ready.append(child.node)
    return tuple(order)


def reaching_of(records: Sequence[Record], order: Sequence[int]) -> set[int]:
    """The nodes that some tracked parameter is below, and these parameters."""
    reaching: set[int] = set()
    for node in reversed(order):
        record = records[node]
        if record.name == LEAF:
            if record.facts != FOREIGN:
                reaching.add(node)
        elif any(child is not None and child.node in reaching for child in record.inputs):
            reaching.add(node)
    return reaching


def lowest(records: Sequence[Record], order: Sequence[int], nodes: Collection[int]) -> set[int]:
    """The lowest of some nodes of a graph in ``order``: no other of them is below."""
    above: set[int] = set()  # nodes with one of the nodes at or below them
    found: set[int] = set()
    for node in reversed(order):
        has_below = any(child is not None and child.node in above for child in records[node].inputs)
        if node in nodes and not has_below:
            found.add(node)
        if node in nodes or has_below:
            above.add(node)
    return found

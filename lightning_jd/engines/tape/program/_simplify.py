"""Shortens a list of operations without changing what it computes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch

from lightning_jd.engines.tape.program._operations import NOTHING, Operation, Slot, Value, replaced

_aten = torch.ops.aten


def simplified(
    operations: Sequence[Operation], values: Sequence[Value], results: Sequence[Slot]
) -> tuple[list[Operation], dict[Slot, Slot]]:
    """Share equal views, skip views of views, drop what nobody needs; numbers stay, bit for bit.

    Args:
        operations: What was recorded.
        values: What is known of each slot.
        results: What the operations are for.

    Returns:
        The operations, and the slots that stand for others now.
    """
    shorter, names = _without_repeated_views(operations, values)
    wanted = [replaced(slot, names) for slot in results]
    shorter = _needed(shorter, values, wanted)
    return shorter, names


def _without_repeated_views(
    operations: Sequence[Operation], values: Sequence[Value]
) -> tuple[list[Operation], dict[Slot, Slot]]:
    """Two tensors with the same memory and geometry are the same tensor, whoever made them.

    A view of a view is one of what both are views of.
    """
    names: dict[Slot, Slot] = {}
    known: dict[object, Slot] = {}
    whole: dict[int, Slot] = {}  # by memory: the tensor that all others there are views of
    for number, value in enumerate(values):
        if value.is_input:
            known[_place(value)] = whole[value.memory] = Slot(number)
    shorter: list[Operation] = []
    for operation in operations:
        operation = operation.renamed(names)
        is_view = not operation.writes
        repeated = True
        for slot in operation.results:
            if slot is NOTHING:
                continue
            value = values[slot.number]
            first = known.setdefault(_place(value), slot)
            whole.setdefault(value.memory, slot)
            if first != slot:
                names[slot] = first
            else:
                repeated = False
        if is_view and repeated:
            continue
        if is_view:
            shorter += _views_of_whole(operation, values, whole)
            continue
        shorter.append(operation)
    return shorter, names


def _place(value: Value) -> object:
    return value.memory, value.geometry, value.dtype


def _views_of_whole(
    operation: Operation, values: Sequence[Value], whole: dict[int, Slot]
) -> list[Operation]:
    """The same views, each taken directly from the tensor that it is a part of."""
    roots = [whole[values[slot.number].memory] for slot in operation.results]
    is_direct = all(root in operation.reads() for root in roots) and not operation.returns_tuple
    # a view by its strides is made in half the time of one by its sizes
    is_direct = is_direct and operation.function is not _aten.view.default
    views = [
        (root, values[root.number], slot, values[slot.number])
        for root, slot in zip(roots, operation.results, strict=True)
    ]
    if is_direct or any(not _can_stride(whole, part) for _, whole, _, part in views):
        return [operation]
    return [
        replace(
            operation,
            function=_aten.as_strided.default,
            args=_strided(root, value, part),
            kwargs={},
            results=(slot,),
            returns_tuple=False,
        )
        for root, value, slot, part in views
    ]


def _can_stride(whole: Value, part: Value) -> bool:
    """Whether a part can be taken by its strides: an input may begin anywhere in its memory."""
    same_begin = whole.geometry[2] == part.geometry[2]
    return whole.dtype == part.dtype and (same_begin or not whole.is_input)


def _strided(root: Slot, whole: Value, part: Value) -> tuple[object, ...]:
    shape, strides, begin = part.geometry
    if whole.geometry[2] == begin:
        return root, shape, strides
    return root, shape, strides, begin


def _needed(
    operations: Sequence[Operation], values: Sequence[Value], results: Collection[Slot]
) -> list[Operation]:
    """What the results depend on: by the tensors, and by who wrote to their memory."""
    slots = set(results)
    memories = {values[slot.number].memory for slot in results}
    kept: list[Operation] = []
    for operation in reversed(operations):
        if operation.writes & memories or slots.intersection(operation.results):
            kept.append(operation)
            for slot in operation.reads():
                slots.add(slot)
                memories.add(values[slot.number].memory)
    return kept[::-1]

"""Shortens a list of operations without changing what it computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

import torch

from lightning_jd.engines.tape.program._operations import NOTHING, Operation, Slot, Value, replaced

_aten = torch.ops.aten


def simplified(
    operations: Sequence[Operation], values: Sequence[Value], results: Sequence[Slot]
) -> tuple[list[Operation], dict[Slot, Slot]]:
    """Compute nothing twice, share views, skip views of views, drop what nobody needs.

    Numbers stay, bit for bit.

    Args:
        operations: What was recorded.
        values: What is known of each slot.
        results: What the operations are for.

    Returns:
        The operations, and the slots that stand for others now.
    """
    names: dict[Slot, Slot] = {}
    while True:  # equal calls may make arguments equal
        operations, others = _without_repeated_views(operations, values)
        names = _renamed(names, others)
        shorter, values, others = _without_repeated_calls(operations, values)
        names = _renamed(names, others)
        if len(shorter) == len(operations):
            break
        operations = shorter
    wanted = [replaced(slot, names) for slot in results]
    return _needed(operations, values, wanted), names


def _renamed(names: dict[Slot, Slot], others: dict[Slot, Slot]) -> dict[Slot, Slot]:
    """What a slot stands for after both replacements."""
    return {slot: others.get(other, other) for slot, other in names.items()} | others


def _without_repeated_calls(
    operations: Sequence[Operation], values: Sequence[Value]
) -> tuple[list[Operation], list[Value], dict[Slot, Slot]]:
    """What two equal calls compute is the same, unless something is written in between.

    Returns:
        The operations; the values, where the memory of a second result is that of the first; and
        the slots that stand for others.
    """
    writes = Counter(memory for operation in operations for memory in operation.writes)
    names: dict[Slot, Slot] = {}
    memories: dict[int, int] = {}
    first: dict[object, Operation] = {}
    shorter: list[Operation] = []
    for operation in operations:
        operation = operation.renamed(names)
        if not _is_pure(operation, values, writes):
            shorter.append(operation)
            continue
        call = operation.function, str((operation.args, operation.kwargs))
        known = first.setdefault(call, operation)
        if known is operation:
            shorter.append(operation)
            continue
        for slot, other in zip(operation.results, known.results, strict=True):
            names[slot] = other
            memories[values[slot.number].memory] = values[other.number].memory
    moved = [replace(value, memory=memories.get(value.memory, value.memory)) for value in values]
    return shorter, moved, names


def _is_pure(operation: Operation, values: Sequence[Value], writes: Counter[int]) -> bool:
    """Whether a call fills new memory that nobody writes to again, from memory that nobody does."""
    if operation.is_late:  # each gradient is a tensor of its own, whatever is done to it later
        return False
    if not operation.writes or NOTHING in operation.results:
        return False
    if torch.Tag.nondeterministic_seeded in getattr(operation.function, "tags", ()):
        return False
    read = {values[slot.number].memory for slot in operation.reads()}
    made = {values[slot.number].memory for slot in operation.results}
    # an input is not written to, and anything else once, when it is made
    return made == operation.writes and all(writes[memory] <= 1 for memory in read | made)


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

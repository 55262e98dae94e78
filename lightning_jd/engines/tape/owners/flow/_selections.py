"""Operations that pick, cut or join slices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightning_jd.engines.tape.graph import reader
from lightning_jd.engines.tape.owners._owners import NOBODY, Owners, joined
from lightning_jd.engines.tape.owners.flow._registry import (
    Crossing,
    Flowed,
    UnprovenError,
    register_flow,
)


@register_flow("SelectBackward0", facts=reader("dim", "index"))
def select(at: Crossing) -> Sequence[Flowed]:
    """One slice of an axis that disappears."""
    dim = at.dim(0, len(at.input))
    return [at.only.moved(at.axis + (dim <= at.axis))]


@register_flow("SliceBackward0", facts=reader("dim", "start", "end", "step"))
def cut(at: Crossing) -> Sequence[Flowed]:
    """A range of an axis; nobody owns what is outside."""
    _, start, end, step = at.facts
    if at.dim(0, at.rank) != at.axis:
        return [at.only]
    size = at.input[at.axis]
    where = slice(start, None if end is None or end > size else end, step)
    if len(range(*where.indices(size))) != len(at.only.ids):
        raise UnprovenError
    return [at.only.spread(where, size)]


@register_flow("SliceScatterBackward0", facts=reader("dim", "start", "end", "step"))
def slice_scatter(at: Crossing) -> Sequence[Flowed]:
    """A range of an axis is replaced by the second input."""
    _, start, end, step = at.facts
    if at.dim(0, at.rank) != at.axis:
        return [at.only, at.only]
    where = slice(start, None if end is None or end > len(at.only.ids) else end, step)
    return [at.only, at.only.taken(where)]


@register_flow("CatBackward0", facts=reader("dim"))
def cat(at: Crossing) -> Sequence[Flowed]:
    """Inputs one after the other along an axis."""
    if any(shape is not None and len(shape) != at.rank for shape in at.inputs):
        raise UnprovenError  # empty vectors are skipped by torch
    if at.dim(0, at.rank) != at.axis:
        return at.everywhere(at.only)
    return _cut_into(at, [None if shape is None else shape[at.axis] for shape in at.inputs])


def _cut_into(at: Crossing, sizes: Sequence[int | None]) -> list[Flowed]:
    """Deal the owners out to inputs of these sizes; one size may be missing, that of a constant."""
    total, missing = len(at.only.ids), sum(size is None for size in sizes)
    if missing > 1:
        # where the others begin is not known; constants get no gradient, so their size is not saved
        raise UnprovenError
    rest = total - sum(size or 0 for size in sizes)
    flowed: list[Flowed] = []
    begin = 0
    for size in sizes:
        end = begin + (rest if size is None else size)
        flowed.append(None if size is None else at.only.taken(slice(begin, end)))
        begin = end
    if begin != total:
        raise UnprovenError
    return flowed


@register_flow("StackBackward0", facts=reader("dim"))
def stack(at: Crossing) -> Sequence[Flowed]:
    """Inputs side by side along a new axis; an input may belong to one owner entirely."""
    dim = at.dim(0, at.rank)
    if dim != at.axis:
        return at.everywhere(at.only.moved(at.axis - (dim < at.axis)))
    if len(at.inputs) != len(at.only.ids):
        raise UnprovenError
    return [Owners(None, at.only.ids[i : i + 1]) for i in range(len(at.inputs))]


@register_flow("UnbindBackward0", facts=reader("dim"))
def unbind(at: Crossing) -> Sequence[Flowed]:
    """Output j is slice j of an axis that disappears."""
    dim = at.dim(0, len(at.input))
    found: Owners | None = None
    for position, owners in enumerate(at.owners):
        if owners is None:
            continue
        if owners.axis is None:
            ids = np.full(at.input[dim], NOBODY)
            ids[position] = owners.ids[0]
            here = Owners(dim, ids)
        else:
            here = owners.moved(owners.axis + (dim <= owners.axis))
        found = _both(found, here)
    return [found]


@register_flow(
    *["SplitBackward0", "SplitWithSizesBackward0", "UnsafeSplitBackward0"],
    *["UnsafeSplitWithSizesBackward0", "ChunkBackward0", "UnsafeChunkBackward0"],
    facts=reader("dim"),
)
def split(at: Crossing) -> Sequence[Flowed]:
    """The outputs are ranges of one axis, in order."""
    dim = at.dim(0, len(at.input))
    if sum(shape[dim] for shape in at.shapes) != at.input[dim]:
        raise UnprovenError
    found: Owners | None = None
    begin = 0
    for shape, owners in zip(at.shapes, at.owners, strict=True):
        end = begin + shape[dim]
        if owners is not None:
            if owners.axis is None:
                owners = Owners(dim, np.repeat(owners.ids, shape[dim]))
            cut_out = slice(begin, end)
            found = _both(
                found, owners.spread(cut_out, at.input[dim]) if owners.axis == dim else owners
            )
        begin = end
    return [found]


def _both(first: Owners | None, second: Owners) -> Owners:
    both = second if first is None else joined(first, second)
    if both is None:
        raise UnprovenError
    return both

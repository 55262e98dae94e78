"""Operations that pick, cut or join slices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from lightning_jd.engines.tape.graph import reader
from lightning_jd.engines.tape.owners._owners import Owners
from lightning_jd.engines.tape.owners.flow._registry import (
    Crossing,
    Flowed,
    both,
    prove,
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
    if at.dim(0, at.rank) != at.axis:
        return [at.only]
    size, where = at.input[at.axis], slice(*at.facts[1:])
    prove(len(range(*where.indices(size))) == len(at.only.ids))
    return [at.only.spread(where, size)]


@register_flow("SliceScatterBackward0", facts=reader("dim", "start", "end", "step"))
def slice_scatter(at: Crossing) -> Sequence[Flowed]:
    """A range of an axis is replaced by the second input."""
    is_whole = at.dim(0, at.rank) != at.axis
    return [at.only, at.only if is_whole else at.only.taken(slice(*at.facts[1:]))]


@register_flow("CatBackward0", facts=reader("dim"))
def cat(at: Crossing) -> Sequence[Flowed]:
    """Inputs one after the other along an axis."""
    # empty vectors are skipped by torch
    prove(all(shape is None or len(shape) == at.rank for shape in at.inputs))
    if at.dim(0, at.rank) != at.axis:
        return at.everywhere(at.only)
    return _cut_into(at, [None if shape is None else shape[at.axis] for shape in at.inputs])


def _cut_into(at: Crossing, sizes: Sequence[int | None]) -> list[Flowed]:
    """Deal the owners out to inputs of these sizes; one size may be missing, that of a constant."""
    total, missing = len(at.only.ids), sum(size is None for size in sizes)
    # else it is not known where the others begin: the size of a constant is not saved
    prove(missing <= 1)
    rest = total - sum(size or 0 for size in sizes)
    flowed: list[Flowed] = []
    begin = 0
    for size in sizes:
        end = begin + (rest if size is None else size)
        flowed.append(None if size is None else at.only.taken(slice(begin, end)))
        begin = end
    prove(begin == total)
    return flowed


@register_flow("StackBackward0", facts=reader("dim"))
def stack(at: Crossing) -> Sequence[Flowed]:
    """Inputs side by side along a new axis; an input may belong to one owner entirely."""
    dim = at.dim(0, at.rank)
    if dim != at.axis:
        return at.everywhere(at.only.moved(at.axis - (dim < at.axis)))
    prove(len(at.inputs) == len(at.only.ids))
    return [Owners(None, at.only.ids[i : i + 1]) for i in range(len(at.inputs))]


@register_flow("UnbindBackward0", facts=reader("dim"))
def unbind(at: Crossing) -> Sequence[Flowed]:
    """Output j is slice j of an axis that disappears."""
    dim = at.dim(0, len(at.input))
    parts: list[Owners] = []
    for position, owners in enumerate(at.owners):
        if owners is None:
            continue
        if owners.axis is None:
            own = slice(position, position + 1)
            parts.append(owners.moved(dim).spread(own, at.input[dim]))
        else:
            parts.append(owners.moved(owners.axis + (dim <= owners.axis)))
    return [reduce(both, parts)]


@register_flow(
    *["SplitBackward0", "SplitWithSizesBackward0", "UnsafeSplitBackward0"],
    *["UnsafeSplitWithSizesBackward0", "ChunkBackward0", "UnsafeChunkBackward0"],
    facts=reader("dim"),
)
def split(at: Crossing) -> Sequence[Flowed]:
    """The outputs are ranges of one axis, in order."""
    dim = at.dim(0, len(at.input))
    prove(sum(shape[dim] for shape in at.shapes) == at.input[dim])
    parts: list[Owners] = []
    begin = 0
    for shape, owners in zip(at.shapes, at.owners, strict=True):
        end = begin + shape[dim]
        if owners is not None and owners.axis not in (None, dim):
            parts.append(owners)
        elif owners is not None:
            own = Owners(dim, np.broadcast_to(owners.ids, shape[dim]))
            parts.append(own.spread(slice(begin, end), at.input[dim]))
        begin = end
    return [reduce(both, parts)]

"""Operations that move slices to where an index says: the index is read where it matters.

An index along another axis than that of the owners moves nothing from owner to owner, whatever it
holds. An index along their axis is data: it is looked up in the step itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import numpy as np

from lightning_jd.engines.tape.graph import Ids, Shape, read_indices, reader
from lightning_jd.engines.tape.owners._owners import Owners, along_one_axis
from lightning_jd.engines.tape.owners.flow._registry import (
    REDUCED,
    Crossing,
    Flowed,
    UnprovenError,
    prove,
    register_flow,
)
from lightning_jd.engines.tape.owners.flow._table import broadcast


@register_flow("IndexSelectBackward0", facts=reader("dim"))
def index_select(at: Crossing) -> Sequence[Flowed]:
    """Slices of one axis, in the order of the index."""
    dim = at.dim(0, len(at.input))
    if dim != at.axis:
        return [at.only]
    (index,) = at.indices
    return [at.only.scattered(index.reshape(-1), at.input[dim])]


@register_flow("GatherBackward0", facts=reader("dim"))
def gather(at: Crossing) -> Sequence[Flowed]:
    """Entries move along one axis only; the index may cover a part of the others."""
    dim = at.dim(0, at.rank)
    if dim != at.axis:
        return [at.only.spread(slice(len(at.only.ids)), at.input[at.axis])]
    (index,) = at.indices
    lines = _lines(index, dim)
    lines = np.broadcast_to(lines, (len(at.only.ids), lines.shape[1]))
    return [at.only.scattered(lines, at.input[dim])]


@register_flow(
    "IndexAddBackward0", "IndexCopyBackward0", "IndexReduceBackward0", facts=reader("dim")
)
def index_add(at: Crossing) -> Sequence[Flowed]:
    """Slice j of the second input goes to slice index[j] of the result."""
    dim = at.dim(0, at.rank)
    if dim != at.axis:
        return [at.only, at.only]
    if at.inputs[1] is None:
        return [at.only, None]
    (index,) = at.indices
    return [at.only, at.only.taken(index.reshape(-1))]


@register_flow("IndexFillBackward0", "IndexFillBackward1", "ScatterBackward1", facts=reader("dim"))
def fill(at: Crossing) -> Sequence[Flowed]:
    """Some entries are replaced by a number; the others stay where they are."""
    return [at.only, *[REDUCED] * (len(at.inputs) - 1)]


@register_flow(
    "ScatterAddBackward0", "ScatterBackward0", "ScatterReduceBackward0", facts=reader("dim")
)
def scatter(at: Crossing) -> Sequence[Flowed]:
    """Entries of the second input move along one axis; the index may cover a part of them."""
    dim, source = at.dim(0, at.rank), at.inputs[1]
    if source is None:
        return [at.only, None]
    if dim != at.axis:
        size = source[at.axis]
        return [at.only, at.only.taken(slice(size)) if size <= len(at.only.ids) else None]
    (index,) = at.indices
    found = along_one_axis(at.only.ids[index])
    return [at.only, None if found is None else _covering(found, source)]


def _covering(owners: Owners, shape: Shape) -> Owners:
    """Owners of an input that an index covers a part of; the rest gets no gradient.

    An index that was expanded along their axis has one entry there.
    """
    assert owners.axis is not None
    size = shape[owners.axis]
    if len(owners.ids) == 1:
        return Owners(owners.axis, np.repeat(owners.ids, size))
    return owners.spread(slice(len(owners.ids)), size)


def _lines(index: Ids, axis: int) -> Ids:
    """An index as a matrix: one line per position along an axis; there may be none."""
    lines = np.moveaxis(index, axis, 0)
    return lines.reshape(len(lines), prod(lines.shape[1:]))


@register_flow("IndexBackward0", facts=read_indices)
def index(at: Crossing) -> Sequence[Flowed]:
    """``x[indices]``."""
    block = _Block.of(at, len(at.input))
    axis = block.source_of(at.axis)
    if axis is not None:
        prove(at.input[axis] == len(at.only.ids))
        return [at.only.moved(axis)]
    # The owners are those of an axis of the index: one of the indexed axes has to tell them apart.
    along = at.axis - block.begin
    lines = [_lines(where, along) for where in block.positions(at)]
    return _told_apart(at, zip(block.axes, lines, strict=True))


def _told_apart(at: Crossing, positions: Iterable[tuple[int, Ids]]) -> list[Flowed]:
    """The owners along the first axis of the input whose positions were read by one owner each."""
    for axis, where in positions:
        if (found := at.only.scattered(where, at.input[axis])) is not None:
            return [found.moved(axis)]
    raise UnprovenError


@register_flow("IndexPutBackward0", facts=read_indices)
def index_put(at: Crossing) -> Sequence[Flowed]:
    """``x[indices] = values``: x keeps its owners, values get those of where they go to."""
    if at.inputs[1] is None:
        return [at.only, None]
    block = _Block.of(at, at.rank)
    shape = block.shape(at, at.shapes[0])
    if at.axis in block.axes:
        where = block.positions(at)[block.axes.index(at.axis)]
        target = along_one_axis(at.only.ids[where])
        if target is None or target.axis is None:
            return [at.only, None]
        target = target.moved(target.axis + block.begin)
    else:
        target = at.only.moved(block.target_of(at.axis))
    return [at.only, broadcast(target, shape, at.inputs[1])]


@register_flow("MaskedSelectBackward0", "MaskedScatterBackward0")
def masked(at: Crossing) -> Sequence[Flowed]:
    """The entries where a mask is true, one after the other; or back to where they were."""
    if len(at.inputs) == 1:  # x[mask], flat
        prove(len(at.indices) == len(at.input))  # the mask was not broadcast
        return _told_apart(at, enumerate(at.indices))
    source = at.inputs[1]
    if source is None:
        return [at.only, None]
    where = at.indices
    if len(source) != 1 or len(where) != at.rank:
        return [at.only, None]
    return [at.only, Owners(0, at.only.ids[where[at.axis]]).spread(slice(len(where[0])), source[0])]


class _Block:
    """Which axes of a tensor are indexed, and where the axes of the indices are in the result.

    Args:
        axes: The indexed axes; a mask covers several.
        begin: The first axis of the indices in the result.
        size: How many axes the indices have, broadcast to each other.
        rank: The number of axes of the indexed tensor.
    """

    def __init__(self, axes: Sequence[int], begin: int, size: int, rank: int) -> None:
        self.axes, self.begin, self.size = axes, begin, size
        self._others = [axis for axis in range(rank) if axis not in axes]

    @classmethod
    def of(cls, at: Crossing, rank: int) -> _Block:
        """Read the facts of an operation on a tensor of this rank."""
        axes: list[int] = []
        axis, size, groups = 0, 0, 0
        is_indexed = False
        for kind in at.facts:
            width = 1 if kind is None or kind >= 0 else -1 - kind
            if kind is not None:
                axes += range(axis, axis + width)
                size = max(size, kind if kind >= 0 else 1)
                groups += not is_indexed
            is_indexed = kind is not None
            axis += width
        prove(bool(axes))
        # indices that are apart from each other move their axes to the front
        return cls(axes, axes[0] if groups == 1 else 0, size, rank)

    def source_of(self, axis: int) -> int | None:
        """The axis of the tensor that an axis of the result is; ``None`` if of the indices."""
        if self.begin <= axis < self.begin + self.size:
            return None
        return self._others[axis if axis < self.begin else axis - self.size]

    def target_of(self, axis: int) -> int:
        """The axis of the result that an axis of the tensor, which is not indexed, becomes."""
        place = self._others.index(axis)
        return place if place < self.begin else place + self.size

    def positions(self, at: Crossing) -> list[Ids]:
        """For each indexed axis, where the entries of the result are along it."""
        found = at.indices
        prove(len(found) == len(self.axes))
        return list(np.broadcast_arrays(*found))

    def shape(self, at: Crossing, source: Shape) -> Shape:
        """The shape of the result."""
        others = [source[axis] for axis in self._others]
        of_indices = self.positions(at)[0].shape
        return (*others[: self.begin], *of_indices, *others[self.begin :])

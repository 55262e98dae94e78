"""Where the entries of a parameter end up in the tensor that an operation consumes.

Between a parameter and an operation there may be transposes, reshapes, casts and slices, such as
the thirds of the packed projection in ``nn.MultiheadAttention``. All of them only move entries, so
that they can be followed exactly on an array of positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from torch import Tensor

from lightning_jd.engines._graph import LEAF
from lightning_jd.engines.tape.graph._records import Constant, Edge, Ids, Record, Shape

#: Views that show the same entries in the same order.
RESHAPES = {
    *["ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "AliasBackward0"],
    *["UnsqueezeBackward0", "SqueezeBackward0", "SqueezeBackward1", "SqueezeBackward2"],
}
_COPIES = {"ToCopyBackward0", "CloneBackward0"}
_SAME_ORDER = RESHAPES | _COPIES
_SPLITS = {
    *["SplitBackward0", "SplitWithSizesBackward0", "UnsafeSplitBackward0", "ChunkBackward0"],
    *["UnsafeSplitWithSizesBackward0", "UnsafeChunkBackward0"],
}


@dataclass(frozen=True)
class Placement:
    """Which entries of a parameter an operation consumes, and in which order.

    Attributes:
        parameter: The position of the parameter.
        size: The number of its entries.
        shape: The shape of the tensor that the operation consumes.
        transposed: That tensor is the transpose of the parameter, seen as a matrix.
        where: The position in the parameter of each entry that the operation consumes; ``None`` if
            they come in the order of the parameter, or transposed.
    """

    parameter: int
    size: int
    shape: Shape
    transposed: bool = False
    where: Ids | None = field(default=None, compare=False)

    @cached_property
    def _entries(self) -> Constant:
        assert self.where is not None
        return Constant(self.where)

    @property
    def is_whole(self) -> bool:
        """Whether every entry of the parameter is consumed."""
        return self.where is None or len(self.where) == self.size

    def positions(self) -> Ids:
        """The position in the parameter of each consumed entry, flat."""
        if self.where is not None:
            return self.where
        positions = np.arange(self.size)
        return positions.reshape(self.shape[::-1]).T.reshape(-1) if self.transposed else positions

    def placed(self, rows: Tensor) -> Tensor:
        """Rows of gradients of what the operation consumes -> rows of gradients of the parameter.

        Returns:
            Shape ``(r, size)``.
        """
        if self.where is not None:
            full = rows.new_zeros(rows.shape[0], self.size)
            where = self._entries.on(rows.device)
            return full.index_copy_(1, where, rows.reshape(rows.shape[0], -1))
        if self.transposed:
            rows = rows.reshape(rows.shape[0], *self.shape).transpose(1, 2)
        return rows.reshape(rows.shape[0], -1)


def place(records: Sequence[Record], edge: Edge) -> Placement | None:
    """Follow an input of an operation down to a tracked parameter.

    Returns:
        ``None`` if there is more than moved entries between the two, or no tracked parameter.
    """
    chain: list[tuple[Record, int]] = []
    record = records[edge.node]
    while record.name != LEAF:
        if len(record.inputs) != 1 or (child := record.inputs[0]) is None:
            return None
        if record.name not in _MOVES or record.facts is True:
            return None  # it does more than move entries: it is unknown, or casts to complex
        chain.append((record, edge.output))
        edge, record = child, records[child.node]
    parameter, source = record.parameter, record.shapes[0]
    if parameter is None:
        return None
    shape = chain[0][0].shapes[chain[0][1]] if chain else source
    moves = [step for step in chain if step[0].name not in _SAME_ORDER]
    if not moves:
        return Placement(parameter, prod(source), shape)
    if len(moves) == 1 and moves[0] == chain[0] and _swaps_matrix(*chain[0]):
        return Placement(parameter, prod(source), shape, transposed=True)
    positions = np.arange(prod(source)).reshape(source)
    for step, output in reversed(chain):
        positions = _MOVES[step.name](positions, step.facts, step.shapes, output)
    return Placement(parameter, prod(source), shape, where=positions.reshape(-1))


def _swaps_matrix(record: Record, output: int) -> bool:
    if len(record.shapes[0]) != 2:
        return False
    if record.name == "TBackward0":
        return True
    if record.name == "PermuteBackward0" and isinstance(record.facts, tuple):  # by `.T`
        return [int(dim) % 2 for dim in record.facts[0]] == [1, 0]
    if record.name == "TransposeBackward0" and isinstance(record.facts, tuple):
        first, second = (int(dim) % 2 for dim in record.facts)
        return first != second
    return False


def _slice(x: Ids, facts: Any, *_: Any) -> Ids:
    dim, *where = facts
    return x.take(range(*slice(*where).indices(x.shape[dim])), axis=dim)


def _split(x: Ids, facts: Any, shapes: Sequence[Shape], output: int) -> Ids:
    (dim,) = facts
    begin = sum(shape[dim] for shape in shapes[:output])
    return x.take(range(begin, begin + shapes[output][dim]), axis=dim)


#: Positions in the input of a view, its arguments, the shapes of its outputs, and one of these
#: outputs -> positions in that output.
_MOVES: dict[str, Callable[[Ids, Any, Sequence[Shape], int], Ids]] = {
    **dict.fromkeys(_SAME_ORDER, lambda x, _, shapes, output: x.reshape(shapes[output])),
    "TBackward0": lambda x, *_: x.T,
    "TransposeBackward0": lambda x, facts, *_: x.swapaxes(*facts),
    "PermuteBackward0": lambda x, facts, *_: x.transpose(facts[0]),
    "SelectBackward0": lambda x, facts, *_: np.asarray(x.take(facts[1], axis=facts[0])),
    "SliceBackward0": _slice,
    "UnbindBackward0": lambda x, facts, _, output: np.asarray(x.take(output, axis=facts[0])),
    **dict.fromkeys(_SPLITS, _split),
}


#: Operations whose results have no memory of their own.
VIEWS = frozenset(_MOVES) - _COPIES | {"ExpandBackward0"}


def overlap(placements: Sequence[Placement]) -> bool:
    """Whether some entry of a parameter is consumed more than once."""
    if len(placements) < 2:
        return False
    if any(placement.is_whole for placement in placements):
        return True
    count = np.zeros(placements[0].size, dtype=np.int64)
    for placement in placements:
        count[placement.positions()] += 1
    return bool((count > 1).any())

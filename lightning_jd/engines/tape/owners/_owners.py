"""Which objective owns which slice of a tensor.

Gradients of different losses can be told apart in one backward pass if every entry of an activation
matters to one loss only, its *owner*. Here an owner is a function of the position along one axis:
batch first or last, batch folded with time or heads, a slice of the batch, several batches in one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from lightning_jd.engines.tape.graph import Ids, Shape

NOBODY = -1


@dataclass(frozen=True, eq=False)
class Owners:
    """The owner of each slice along ``axis``.

    Attributes:
        axis: The axis that tells the owners apart, or ``None`` if one objective owns everything.
        ids: One owner per slice, :data:`NOBODY` where no loss depends on the slice. One entry if
            ``axis`` is ``None``.

    Example:
        >>> batch = Owners(0, np.arange(2))                    # shape (2, 3)
        >>> batch.reshaped((2, 3), (6,)).ids.tolist()          # folded, batch first
        [0, 0, 0, 1, 1, 1]
        >>> batch.moved(1).reshaped((3, 2), (6,)).ids.tolist()  # folded, batch last
        [0, 1, 0, 1, 0, 1]
    """

    axis: int | None
    ids: Ids

    def moved(self, axis: int) -> Owners:
        """The same owners along another axis."""
        return Owners(axis, self.ids)

    def taken(self, where: slice | Ids) -> Owners:
        """The owners of some of the slices."""
        return Owners(self.axis, self.ids[where])

    def spread(self, where: slice | Ids, size: int) -> Owners:
        """The owners along a longer axis of which these slices are a part."""
        ids = np.full(size, NOBODY)
        ids[where] = self.ids
        return Owners(self.axis, ids)

    def scattered(self, where: Ids, size: int) -> Owners | None:
        """The owners of the slices that these were read from, some of them perhaps repeatedly.

        Args:
            where: The position that each slice was read from; one row per slice if it was read from
                several.
            size: How many slices there are.

        Returns:
            ``None`` if two owners have read one slice.

        Example:
            >>> Owners(0, np.array([0, 0, 1])).scattered(np.array([2, 1, 0]), 4).ids.tolist()
            [1, 0, 0, -1]
        """
        ids = np.full(size, NOBODY)
        readers = np.broadcast_to(self.ids.reshape(-1, *[1] * (where.ndim - 1)), where.shape)
        owned = readers != NOBODY
        ids[where[owned]] = readers[owned]
        return None if (ids[where[owned]] != readers[owned]).any() else Owners(self.axis, ids)

    def equals(self, other: Owners) -> bool:
        """Whether every slice has the same owner in both."""
        return self.axis == other.axis and np.array_equal(self.ids, other.ids)

    def reshaped(self, old: Shape, new: Shape) -> Owners | None:
        """Follow the owners through a reshape that keeps the row-major order of the entries.

        With P the number of entries behind an axis of size n, the position along it is
        ``flat // P % n``. Owners survive if their axis is merged into one new axis, or is split
        such that they depend on the position along one of the parts.

        Returns:
            Owners for the new shape, or ``None`` if they are no function of one of its axes.
        """
        if self.axis is None or old == new:
            return self
        size, behind = old[self.axis], prod(old[self.axis + 1 :])
        if behind == 0 or size == 0:
            return None
        for axis, new_size in enumerate(new):
            new_behind = prod(new[axis + 1 :])
            ids = _regrouped(self.ids, size, behind, new_size, new_behind)
            if ids is not None:
                return Owners(axis, ids)
        return None


def _regrouped(ids: Ids, size: int, behind: int, new_size: int, new_behind: int) -> Ids | None:
    if new_size == 0 or new_behind == 0:
        return None
    if behind % new_behind == 0 and new_size * new_behind % (size * behind) == 0:
        # merged: the new axis runs over the whole old one, in steps of equal length
        inner, outer = behind // new_behind, new_size * new_behind // (size * behind)
        return np.tile(np.repeat(ids, inner), outer)
    if new_behind % behind == 0 and size * behind % (new_size * new_behind) == 0:
        # split: the old axis is (rest, new axis, inner); only the middle may matter
        inner = new_behind // behind
        grid = ids.reshape(-1, new_size, inner)
        middle = grid[0, :, 0]
        if np.array_equal(grid, np.broadcast_to(middle[None, :, None], grid.shape)):
            return middle.copy()
    return None


def joined(first: Owners, second: Owners) -> Owners | None:
    """Owners of a tensor that is used twice; ``None`` if the uses disagree.

    Example:
        >>> left = Owners(0, np.array([0, 1, -1, -1]))
        >>> right = Owners(0, np.array([-1, -1, 0, 1]))
        >>> joined(left, right).ids.tolist()
        [0, 1, 0, 1]
    """
    if first.axis != second.axis or len(first.ids) != len(second.ids):
        return None
    conflict = (first.ids != second.ids) & (first.ids != NOBODY) & (second.ids != NOBODY)
    return None if conflict.any() else Owners(first.axis, np.maximum(first.ids, second.ids))


def along_one_axis(grid: Ids) -> Owners | None:
    """The owners of a tensor, entry by entry, if they depend on the position along one axis.

    Example:
        >>> along_one_axis(np.array([[3, 4], [3, 4]]))
        Owners(axis=1, ids=array([3, 4]))
    """
    for axis in range(grid.ndim):
        lines = np.moveaxis(grid, axis, -1).reshape(-1, grid.shape[axis])
        if len(lines) and (lines == lines[:1]).all():
            return Owners(axis, lines[0].copy())
    return None


def in_order(count: int) -> Owners:
    """Objective i owns slice i of the first axis."""
    return Owners(0, np.arange(count))


def single_owner(owner: int = 0) -> Owners:
    """One objective owns everything."""
    return Owners(None, np.array([owner]))

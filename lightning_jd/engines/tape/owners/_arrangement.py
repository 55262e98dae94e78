"""Brings activations and their gradients into the order of their owners."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from lightning_jd.engines.tape.graph import Constant
from lightning_jd.engines.tape.owners._owners import NOBODY, Owners


class Arrangement:
    """Sorts the slices of a tensor by owner: shape ``(m, T, ...)``, T slices for each of m owners.

    Where every owner has equally many slices in a regular pattern this is a view or one copy;
    otherwise slices are gathered and short owners are padded, with zeros in the cotangents.

    Args:
        owners: Who owns which slice; their axis must not be ``None``.
        m: The number of owners.

    Example:
        >>> folded = Arrangement(Owners(0, np.array([0, 1, 0, 1])), 2)  # time first, then batch
        >>> folded.split(torch.tensor([10, 20, 11, 21])).tolist()
        [[10, 11], [20, 21]]
        >>> folded.weights(torch.tensor([1.0, -1.0])).tolist()
        [1.0, -1.0, 1.0, -1.0]
    """

    def __init__(self, owners: Owners, m: int) -> None:
        assert owners.axis is not None
        self.axis = owners.axis
        self.ids = owners.ids
        self.m = m
        self.regular = _pattern(owners.ids, m)

    def split(self, x: Tensor) -> Tensor:
        """The slices of ``x`` by owner, shape ``(m, T, *rest)``; padding repeats some slice."""
        if self.regular is None:
            return x.movedim(self.axis, 0)[self._table[0].on(x.device)]
        outer, inner = self.regular
        if self.axis == 0 and outer == 1:
            return x.reshape(self.m, inner, *x.shape[1:])
        if outer == inner == 1:
            return x.movedim(self.axis, 0).unsqueeze(1)
        cut = x.unflatten(self.axis, (outer, self.m, inner))
        cut = cut.movedim((self.axis + 1, self.axis, self.axis + 2), (0, 1, 2))
        sorted_by_owner: Tensor = cut.flatten(1, 2)
        return sorted_by_owner

    def split_cotangent(self, x: Tensor) -> Tensor:
        """Like :meth:`split`, with zeros as padding."""
        rows = self.split(x)
        if self.regular is None:
            rows = rows * self._table[1].on(x.device)[(..., *[None] * (rows.ndim - 2))]
        return rows

    @property
    def is_ragged(self) -> bool:
        """Whether there are several slices per owner, in no regular pattern."""
        return self.regular is None and len(self.ids) >= 4 * self.m

    @cached_property
    def bounds(self) -> list[tuple[int, int]]:
        """Where the slices of each owner begin and end in :meth:`sorted`."""
        counts = np.bincount(self.ids[self.ids != NOBODY], minlength=self.m)
        ends = np.cumsum(counts) + int((self.ids == NOBODY).sum())
        return list(zip((ends - counts).tolist(), ends.tolist(), strict=True))

    def sorted(self, x: Tensor) -> Tensor:
        """The slices of ``x`` one after the other, those of nobody first."""
        if (np.diff(self.ids) >= 0).all():
            return x.movedim(self.axis, 0)
        return x.index_select(self.axis, self._order.on(x.device)).movedim(self.axis, 0)

    def weights(self, w: Tensor) -> Tensor:
        """The weight of the owner of each slice, zero for nobody, one entry per slice."""
        padded = torch.cat([w, w.new_zeros(1)])
        return padded[self.ids_on(w.device)]

    def ids_on(self, device: torch.device) -> Tensor:
        """The owner of each slice, as a tensor."""
        return self._ids.on(device)

    @cached_property
    def _order(self) -> Constant:
        return Constant(np.argsort(self.ids, kind="stable"))

    @cached_property
    def _ids(self) -> Constant:
        return Constant(self.ids)

    @cached_property
    def _table(self) -> tuple[Constant, Constant]:
        counts = np.bincount(self.ids[self.ids != NOBODY], minlength=self.m)
        slots = np.zeros((self.m, int(counts.max(initial=0))), dtype=np.int64)
        filled = np.arange(slots.shape[1])[None, :] < counts[:, None]
        order = np.argsort(self.ids, kind="stable")
        slots[filled] = order[int((self.ids == NOBODY).sum()) :]
        return Constant(slots), Constant(filled)


def _pattern(ids: np.ndarray, m: int) -> tuple[int, int] | None:
    """(outer, inner) such that slice q belongs to owner ``q // inner % m``, or ``None``."""
    size = len(ids)
    if size == 0 or size % m:
        return None
    changes = np.flatnonzero(ids != ids[0])
    inner = int(changes[0]) if len(changes) else size
    if size % (inner * m):
        return None
    regular = np.arange(size) // inner % m
    return (size // (inner * m), inner) if np.array_equal(ids, regular) else None

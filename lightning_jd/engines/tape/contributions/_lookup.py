"""Gradients of a table, of which each objective looks up a few entries."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.engines.tape.contributions._base import Contribution
from lightning_jd.engines.tape.contributions._pieces import pieces
from lightning_jd.engines.tape.graph import Placement


class Lookup(Contribution):
    """Gradients of a table: objective k adds cotangent ``D[k, s]`` to entry ``index[k, s]``.

    Only the entries that occur are ever touched, whatever the size of the table.

    Args:
        index: Shape (m, T).
        cotangents: D, shape (m, T, d).
        placement: The table, whose shape is (entries, d).
    """

    def __init__(self, index: Tensor, cotangents: Tensor, placement: Placement) -> None:
        self.placements = (placement,)
        self.index, self.D, self.m = index, cotangents, len(cotangents)

    @override
    def gramian(self) -> Tensor:
        used, place = torch.unique(self.index, return_inverse=True)
        rows = _added_up(place, self.D, len(used)).view(self.m, -1)
        return rows @ rows.T

    @override
    def squared_norms(self) -> Tensor:
        entries, k = self.placements[0].shape[0], torch.arange(self.m, device=self.index.device)
        used, place = torch.unique(self.index + entries * k[:, None], return_inverse=True)
        sums = self.D.new_zeros(len(used), self.D.shape[2])
        sums.index_add_(0, place.reshape(-1), self.D.flatten(0, 1))
        return self.D.new_zeros(self.m).index_add_(0, used // entries, sums.square().sum(dim=1))

    @override
    def products_with(self, other: Contribution) -> Tensor | None:
        if not isinstance(other, Lookup) or self.inner is None or self.inner != other.inner:
            return None
        both = torch.cat([self.index.reshape(-1), other.index.reshape(-1)])
        used, place = torch.unique(both, return_inverse=True)
        here, there = place.split([self.index.numel(), other.index.numel()])
        J = _added_up(here.view_as(self.index), self.D, len(used)).view(self.m, -1)
        K = _added_up(there.view_as(other.index), other.D, len(used)).view(other.m, -1)
        return J @ K.T

    @override
    def rows(self) -> Tensor:
        placement = self.placements[0]
        entries = placement.shape[0]
        rows = _added_up(self.index, self.D, entries).view(len(self.D), *placement.shape)
        return placement.placed(rows)

    @property
    @override
    def inner(self) -> int | None:
        placement = self.placements[0]
        return None if placement.where is not None or placement.transposed else self.D.shape[2]

    @override
    def blocks(self, width: int) -> Iterator[Tensor]:
        if self.inner is None:
            yield self.rows()
            return
        entries, step = self.placements[0].shape[0], max(1, width // self.inner)
        for begin in range(0, entries, step):
            size = min(step, entries - begin)
            # those of other blocks go to one more entry, which is dropped
            place = (self.index - begin).clamp(-1, size) % (size + 1)
            block = _added_up(place, self.D, size + 1).view(self.m, size + 1, -1)
            yield block[:, :size].flatten(1)

    @override
    def gradients(self, weights: Tensor) -> list[Tensor]:
        placement = self.placements[0]
        table = self.D.new_zeros(placement.shape)
        self._add_to_table(weights, table)
        return [placement.placed(table.unsqueeze(0))[0]]

    @override
    def add_gradient(self, weights: Tensor, total: Tensor) -> None:
        if self.inner is None:
            super().add_gradient(weights, total)
        else:
            self._add_to_table(weights, total.view(self.placements[0].shape))

    def _add_to_table(self, weights: Tensor, table: Tensor) -> None:
        scaled = self.D * weights.to(self.D.dtype)[:, None, None]
        table.index_add_(0, self.index.reshape(-1), scaled.flatten(0, 1))


def _added_up(place: Tensor, cotangents: Tensor, entries: int) -> Tensor:
    m, _, d = cotangents.shape
    offset = torch.arange(m, device=place.device).unsqueeze(1) * entries
    table = cotangents.new_zeros(m * entries, d)
    return table.index_add_(0, (place + offset).reshape(-1), cotangents.flatten(0, 1))


def lookup_pairs(lines: Tensor, entries: Tensor, lookup: Lookup) -> Tensor:
    """The diagonal of :func:`lookup_products`, whose arguments it has; shape (m,)."""
    index = lookup.index.unsqueeze(1).expand(-1, lines.shape[1], -1)
    K = torch.bmm(entries, lookup.D.transpose(1, 2))
    return K.mul_(lines.gather(2, index)).sum((1, 2))


def lookup_products(lines: Tensor, entries: Tensor, lookup: Lookup) -> Tensor:
    r"""Products of sums of outer products with look-ups in the same table.

    With :math:`J_k = \sum_s L_{ks} E_{ks}^\top`, whose lines are those of the table, and cotangents
    :math:`C_{lt}` that are added to line :math:`n_{lt}`,

    .. math:: G_{kl} = \sum_{s,t} L_{ks, n_{lt}} \langle E_{ks}, C_{lt} \rangle .

    Args:
        lines: L, shape (m, T, lines of the table).
        entries: E, shape (m, T, length of a line).
        lookup: The look-ups.
    """
    (m, T, _), (_, S, d) = lines.shape, lookup.D.shape
    L, E = lines.reshape(m * T, -1), entries.reshape(m * T, d)
    step = max(1, pieces(L).temporary // max(1, 2 * m * T * S * L.element_size()))
    found = []
    for index, C in zip(lookup.index.split(step), lookup.D.split(step), strict=True):
        K = E @ C.reshape(-1, d).T
        K.mul_(L.index_select(1, index.reshape(-1)))
        found.append(K.view(m, T, len(C), S).sum((1, 3)))
    return torch.cat(found, dim=1)

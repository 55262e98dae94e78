"""Gradients that are sums of outer products, as those of every matrix weight are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from math import prod

import torch
from torch import Tensor
from typing_extensions import Self, override

from lightning_jd.engines.tape.contributions._base import (
    Budget,
    Contribution,
    Factors,
    Settled,
    together,
)
from lightning_jd.engines.tape.contributions._cross import cross_gramian
from lightning_jd.engines.tape.contributions._lookup import (
    Lookup,
    lookup_pairs,
    lookup_products,
)
from lightning_jd.engines.tape.contributions._pieces import Pieces, pieces
from lightning_jd.engines.tape.contributions._products import (
    by_upper_blocks,
    matrix_gradient,
    products,
    sum_of_products,
)
from lightning_jd.engines.tape.contributions._rows import Rows
from lightning_jd.engines.tape.graph import Placement

#: Multiplications that take as long as writing and reading one number of a row.
_READING = 24
#: Products of fewer rows at a time are slow.
_ROWS_OF_A_BLOCK = 64
#: From which number of positions of all objectives on half a product is worth several calls.
_MANY_ROWS = 512


class OuterProduct(Contribution):
    r"""Gradient :math:`J_k = \sum_s D_{ks} A_{ks}^\top` of objective k, s over its T positions.

    .. math::
        G_{kl} = \sum_{s,t} \langle D_{ks}, D_{lt} \rangle \langle A_{ks}, A_{lt} \rangle
               = \langle J_k, J_l \rangle

    The first form costs :math:`T^2(i + o)` per pair, the second :math:`i\,o` per pair and
    :math:`T\,i\,o` per objective; the cheaper one is taken. That depends on sizes alone, never on
    a clock, so that a run that is resumed rounds as before.

    Args:
        activations: :math:`A`, shape (m, T, i).
        cotangents: :math:`D`, shape (m, T, o).
        placement: Where the weight is in its parameter.
        bias: Where the bias is, if its gradient :math:`\sum_s D_{ks}` is to be included.
        cotangents_first: The operation consumes the weight as (o, i) rather than (i, o).
    """

    def __init__(
        self,
        activations: Tensor,
        cotangents: Tensor,
        placement: Placement,
        bias: Placement | None = None,
        *,
        cotangents_first: bool,
    ) -> None:
        self.placements = (placement,) if bias is None else (placement, bias)
        self.A, self.D = activations, cotangents
        self.cotangents_first = cotangents_first

    @property
    def _has_bias(self) -> bool:
        return len(self.placements) > 1

    @cached_property
    @override
    def m(self) -> int:
        return len(self.A)

    @override
    def gramian(self) -> Tensor:
        if self._kernels_are_cheaper():
            return kernel_gramian(self.A, self.D, self._has_bias)
        G = rows_gramian(self.A, self.D)
        return G + products(self.D.sum(dim=1)) if self._has_bias else G

    @override
    def squared_norms(self) -> Tensor:
        return squared_norms(self.A, self.D)

    @override
    def settle(self, budget: Budget) -> Settled:
        if self._kernels_are_cheaper():
            return Settled(self.gramian(), [self])
        if self._has_bias:
            return together(part.settle(budget) for part in self.split())
        if budget.keeps and self._rows_are_worth_keeping(budget):
            return self._as_rows().settle(budget)
        return Settled(rows_gramian(self.A, self.D), [self])

    def _kernels_are_cheaper(self) -> bool:
        m, T, i = self.A.shape
        o = self.D.shape[2]
        if m * i * o * (T + m) <= pieces(self.A).launches and self.placements[0].where is None:
            return False  # short rows share one product with those of other layers
        blocks = -(-m // _objectives_per_block(m, T, self.A.element_size(), pieces(self.A)))
        by_kernels = (m * T) ** 2 * (i + o) * (1 + 1 / blocks) / 2
        reading = _READING if i * o > Rows.SHORT else 0
        return by_kernels <= m * i * o * (T + m + reading)

    def _rows_are_worth_keeping(self, budget: Budget) -> bool:
        _, T, i = self.A.shape
        width = i * self.D.shape[2]
        if budget.is_lean:
            return i < T
        is_small = len(self.A) * width <= 2 * (self.A.numel() + self.D.numel())
        return width <= Rows.SHORT or (width <= budget.room and is_small)

    def _as_rows(self) -> Rows:
        """The rows, in the order of the memory that products are fastest in."""
        placement = self.placements[0]
        left, right = (self.D, self.A) if self._parameter_is_oi else (self.A, self.D)
        lines, length = left.shape[2], right.shape[2]
        if placement.where is not None or lines <= length or lines * length <= Rows.SHORT:
            return Rows(self.rows(), placement, is_placed=True)
        turned = torch.bmm(right.transpose(1, 2), left)  # few long lines rather than many short
        return Rows(turned.transpose(1, 2), placement, is_placed=True)

    @override
    def rows(self) -> Tensor:
        left, right = (self.D, self.A) if self._parameter_is_oi else (self.A, self.D)
        rows = torch.bmm(left.transpose(1, 2), right).flatten(1)
        return rows if self.placements[0].where is None else self.placements[0].placed(rows)

    @property
    @override
    def inner(self) -> int | None:
        if self.placements[0].where is not None:
            return None
        return (self.A if self._parameter_is_oi else self.D).shape[2]

    @override
    def blocks(self, width: int) -> Iterator[Tensor]:
        if self.placements[0].where is not None:
            yield self.rows()
            return
        left, right = (self.D, self.A) if self._parameter_is_oi else (self.A, self.D)
        for part in left.split(max(1, width // right.shape[2]), dim=2):
            yield torch.bmm(part.transpose(1, 2), right).flatten(1)

    @property
    def _parameter_is_oi(self) -> bool:
        return self.cotangents_first != self.placements[0].transposed

    @override
    def gradients(self, weights: Tensor) -> list[Tensor]:
        m, T, i = self.A.shape
        o = self.D.shape[2]
        w = weights.to(self.D.dtype)
        each = w if T == 1 else w.repeat_interleave(T)
        A, D = self.A.reshape(m * T, i), self.D.reshape(m * T, o)
        bias = []
        if i < o and (T > 1 or not self._has_bias):  # the smaller one is scaled
            A = A * each.unsqueeze(1)
            if self._has_bias:
                bias = [torch.mv(self.D.sum(dim=1).T, w)]  # few terms: mv adds up one by one
        else:
            D = D * each.unsqueeze(1)
            if self._has_bias:
                bias = [D.sum(dim=0)]
        first = self.cotangents_first
        return [matrix_gradient(A, D, self.placements[0], cotangents_first=first), *bias]

    @override
    def products_with(self, other: Contribution) -> Tensor | None:
        if self._kernels_are_cheaper() and (table := self._as_table(other)) is not None:
            return lookup_products(*table)
        return None

    @override
    def pairs_with(self, other: Contribution) -> Tensor | None:
        return None if (table := self._as_table(other)) is None else lookup_pairs(*table)

    def _as_table(self, other: Contribution) -> tuple[Tensor, Tensor, Lookup] | None:
        """Lines and entries of the rows, if these are those of a table that others look up."""
        if not isinstance(other, Lookup) or self.inner is None or self.inner != other.inner:
            return None
        if self._has_bias:
            return None
        return (*((self.D, self.A) if self._parameter_is_oi else (self.A, self.D)), other)

    @override
    def split(self) -> list[Contribution]:
        if not self._has_bias:
            return [self]
        placement, bias = self.placements
        alone = OuterProduct(self.A, self.D, placement, cotangents_first=self.cotangents_first)
        D = self.D.sum(dim=1) if self.D.shape[1] != 1 else self.D.squeeze(1)
        return [alone, Rows(D, bias)]

    @override
    def merged(self, others: Sequence[Contribution]) -> Contribution | None:
        if (parts := self.alike(others)) is None:
            return None
        A = torch.cat([part.A for part in parts], dim=1)
        return self._with(A, torch.cat([part.D for part in parts], dim=1))

    @override
    def stacked(self, others: Sequence[Contribution]) -> Contribution | None:
        parts = self.alike(others)
        if parts is None or any(part.A.shape != self.A.shape for part in parts):
            return None
        D = torch.stack([part.D for part in parts], dim=1)
        return self._with(self.A.repeat_interleave(len(parts), dim=0), D.flatten(0, 1))

    @override
    def factors(self) -> Factors | None:
        if self.placements[0].where is not None:
            return None
        A, D, bias = self.A, self.D, self._has_bias
        return Factors(
            ("outer product", A.shape[2], D.shape[2], self._parameter_is_oi, bias),
            (tuple(A.shape), tuple(D.shape)),
            lambda: (A, D),
            partial(cross_gramian, bias=bias),
        )

    @override
    def alike(self, others: Sequence[Contribution]) -> list[Self] | None:
        parts = super().alike(others)
        if parts is None or any(p.cotangents_first != self.cotangents_first for p in parts):
            return None
        return parts

    def _with(self, activations: Tensor, cotangents: Tensor) -> OuterProduct:
        placement, *bias = self.placements
        return OuterProduct(
            activations, cotangents, placement, *bias, cotangents_first=self.cotangents_first
        )


def squared_norms(A: Tensor, D: Tensor) -> Tensor:
    r"""Squared norms of :math:`\sum_s D_{ks} A_{ks}^\top`, by the cheaper of the two forms.

    Args:
        A: Activations, shape (m, T, i).
        D: Cotangents, shape (m, T, o).
    """
    (m, T, i), o = A.shape, D.shape[2]
    if T == 1:
        return A.square().sum(dim=(1, 2)) * D.square().sum(dim=(1, 2))
    if i > o:
        A, D, i, o = D, A, o, i  # cut the longer axis
    room = pieces(A).dropped // A.element_size()
    total = A.new_zeros(m)
    if T * (i + o) <= i * o * (1 + _READING / max(1, T)):
        step = max(1, room // max(1, T * T))
        for k in range(0, m, step):
            a, d = A[k : k + step], D[k : k + step]
            K = torch.bmm(a, a.transpose(1, 2)).mul_(torch.bmm(d, d.transpose(1, 2)))
            total[k : k + step] = K.sum((1, 2))
        return total
    for d in D.split(max(1, room // max(1, m * i)), dim=2):
        rows = torch.bmm(d.transpose(1, 2), A).flatten(1)
        total += torch.linalg.vector_norm(rows, dim=1).square()
    return total


def kernel_gramian(A: Tensor, D: Tensor, plus_one: bool) -> Tensor:
    """Sum over positions of ``(A Aᵀ) * (D Dᵀ)``, upper blocks of objectives only.

    Args:
        A: Activations, shape (m, T, i).
        D: Cotangents, shape (m, T, o).
        plus_one: Add the gradients of a bias, whose activation is 1.
    """
    m, T, i = A.shape
    if T == 0:  # an expert that no token was sent to
        return A.new_zeros(m, m)
    A, D = A.reshape(m * T, i), D.reshape(m * T, D.shape[2])
    step = _objectives_per_block(m, T, A.element_size(), pieces(A))
    if step >= m:
        return _kernel_block(A, A, D, D, T, plus_one)

    def block(begin: int, end: int) -> Tensor:
        some, rest = slice(begin * T, end * T), slice(begin * T, None)
        return _kernel_block(A[some], A[rest], D[some], D[rest], T, plus_one)

    return by_upper_blocks(m, step, A, block)


def _kernel_block(A: Tensor, B: Tensor, D: Tensor, E: Tensor, T: int, plus_one: bool) -> Tensor:
    """Products of some objectives (activations A, cotangents D) and others (B and E)."""
    K, H = A @ B.T, D @ E.T
    K = torch.addcmul(H, K, H) if plus_one else K.mul_(H)  # (K + 1) * H, or K * H
    return K.view(len(A) // T, T, len(B) // T, T).sum((1, 3)) if T > 1 else K


def _objectives_per_block(m: int, T: int, itemsize: int, size: Pieces) -> int:
    """How many objectives meet all later ones at a time: the fewer, the less is computed twice."""
    is_large = m * T >= (2 * _ROWS_OF_A_BLOCK if T == 1 else _MANY_ROWS)
    blocks = min(size.blocks, m * T // _ROWS_OF_A_BLOCK) if is_large else 1
    fits = max(1, size.temporary // max(1, 2 * m * T * T * itemsize))
    return min(-(-m // blocks), fits)


def rows_gramian(A: Tensor, D: Tensor) -> Tensor:
    """Products of the gradients themselves, some of their columns at a time."""
    return sum_of_products(_columns(A, D))


def _columns(A: Tensor, D: Tensor) -> Iterator[Tensor]:
    """The gradients, a part of the longer axis at a time, in memory that is used again."""
    m, _, i = A.shape
    o = D.shape[2]
    if i > o:
        A, D, i, o = D, A, o, i
    step = max(1, min(o, pieces(A).dropped // max(1, m * i * A.element_size())))
    memory = A.new_empty(m * step * i)  # one for all: fresh memory is slow
    for d in D.split(step, dim=2):
        shape = m, d.shape[2], i
        rows = memory[: prod(shape)].view(shape)
        yield torch.bmm(d.transpose(1, 2), A, out=rows).flatten(1)

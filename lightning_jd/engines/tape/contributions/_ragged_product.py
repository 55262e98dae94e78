"""Gradients that are sums of outer products, different numbers of them per objective."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.engines.tape.contributions._base import (
    Budget,
    Contribution,
    Settled,
    together,
)
from lightning_jd.engines.tape.contributions._outer_product import OuterProduct, squared_norms
from lightning_jd.engines.tape.contributions._pieces import pieces
from lightning_jd.engines.tape.contributions._products import matrix_gradient, products
from lightning_jd.engines.tape.contributions._rows import Rows
from lightning_jd.engines.tape.graph import Placement
from lightning_jd.engines.tape.owners import Arrangement, Owners


class RaggedProduct(Contribution):
    r"""Gradient :math:`J_k = \sum_s A_s D_s^\top` of objective k, s over the slices that it owns.

    As :class:`OuterProduct`, without padding: for graphs and other batches whose instances have
    sizes of their own.

    Args:
        activations: A, shape (n, i).
        cotangents: D, shape (n, o).
        owners: Who owns which of the n slices.
        placement: Where the weight is, which the operation consumes as (i, o).
        bias: Where the bias is, if its gradient is to be included.
    """

    def __init__(
        self,
        activations: Tensor,
        cotangents: Tensor,
        owners: Arrangement,
        placement: Placement,
        bias: Placement | None = None,
    ) -> None:
        self.placements = (placement,) if bias is None else (placement, bias)
        self.A, self.D, self.owners, self.m = activations, cotangents, owners, owners.m

    @override
    def gramian(self) -> Tensor:
        gramian = self.settle(Budget(keeps=False)).gramian
        assert gramian is not None
        return gramian

    @override
    def squared_norms(self) -> Tensor:
        A, D = self.owners.sorted(self.A), self.owners.sorted(self.D)
        each = [squared_norms(A[None, b:e], D[None, b:e]) for b, e in self.owners.bounds]
        return torch.cat(each)

    @override
    def settle(self, budget: Budget) -> Settled:
        weight, *bias = self.split()
        return together([self._settled(weight, budget), *[part.settle(budget) for part in bias]])

    def _settled(self, weight: Contribution, budget: Budget) -> Settled:
        m, (n, i), o = self.m, self.A.shape, self.D.shape[1]
        width = i * o
        if n * n * (i + o) <= (n + m * m) * width:
            return Settled(self._kernel_gramian(), [weight])
        if m * width * self.A.element_size() > pieces(self.A).temporary:
            alone = RaggedProduct(self.A, self.D, self.owners, self.placements[0])
            return Settled(alone.padded().gramian(), [weight])  # in pieces
        rows = self._rows()
        is_small = rows.numel() <= 3 * (self.A.numel() + self.D.numel())
        if budget.keeps and width <= budget.room and is_small:
            return Settled(products(rows.flatten(1)), [Rows(rows, self.placements[0])])
        return Settled(products(rows.flatten(1)), [weight])

    def _kernel_gramian(self) -> Tensor:
        K = (self.A @ self.A.T).mul_(self.D @ self.D.T)
        ids = self.owners.ids_on(K.device)
        S = (torch.arange(self.m, device=K.device)[:, None] == ids).to(K.dtype)  # who owns what
        return S @ K @ S.T

    def _rows(self) -> Tensor:
        A, D = self.owners.sorted(self.A), self.owners.sorted(self.D)
        rows = A.new_zeros(self.m, A.shape[1], D.shape[1])
        for k, (begin, end) in enumerate(self.owners.bounds):
            if end > begin:
                torch.mm(A[begin:end].T, D[begin:end], out=rows[k])
        return rows

    @override
    def rows(self) -> Tensor:
        return self.placements[0].placed(self._rows())

    @override
    def gradients(self, weights: Tensor) -> list[Tensor]:
        D = self.D * self.owners.weights(weights.to(self.D.dtype)).unsqueeze(1)
        placement, *bias = self.placements
        return [matrix_gradient(self.A, D, placement), *[D.sum(dim=0) for _ in bias]]

    @override
    def split(self) -> list[Contribution]:
        placement, *bias = self.placements
        biases: list[Contribution] = []
        if bias:
            summed = self.D.new_zeros(self.owners.m + 1, self.D.shape[1])
            ids = self.owners.ids_on(self.D.device) % len(summed)
            biases = [Rows(summed.index_add_(0, ids, self.D)[:-1], bias[0])]
        return [RaggedProduct(self.A, self.D, self.owners, placement), *biases]

    @override
    def merged(self, others: Sequence[Contribution]) -> Contribution | None:
        if (parts := self.alike(others)) is None:
            return None
        ids = np.concatenate([part.owners.ids for part in parts])
        return RaggedProduct(
            torch.cat([part.A for part in parts]),
            torch.cat([part.D for part in parts]),
            Arrangement(Owners(0, ids), self.owners.m),
            *self.placements,
        )

    def padded(self) -> OuterProduct:
        """The same with as many slices for every objective, shape (m, T, ...)."""
        A, D = self.owners.split(self.A), self.owners.split_cotangent(self.D)
        return OuterProduct(A, D, *self.placements, cotangents_first=False)

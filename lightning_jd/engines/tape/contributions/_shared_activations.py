"""Gradients of a matrix weight when all objectives share its input, as tasks do."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.engines.tape.contributions._base import (
    Contribution,
    Factors,
)
from lightning_jd.engines.tape.contributions._cross import shared_cross_gramian
from lightning_jd.engines.tape.contributions._pieces import pieces
from lightning_jd.engines.tape.contributions._products import matrix_gradient
from lightning_jd.engines.tape.contributions._rows import Rows
from lightning_jd.engines.tape.graph import Placement


class SharedActivations(Contribution):
    r"""Gradients :math:`J_k = D_k^\top A` of a matrix weight, all with the same activations.

    .. math:: G_{kl} = \langle D_k, (A A^\top + c) D_l \rangle

    with c = 1 if there is a bias. No gradient is formed: cheaper where there are fewer activations
    than features.

    Args:
        activations: A, shape (n, i).
        cotangents: D, shape (m, n, o).
        weight: Where the weight is, which the operation consumes as (i, o).
        bias: Where the bias is, if there is one.
    """

    def __init__(
        self, activations: Tensor, cotangents: Tensor, weight: Placement, *bias: Placement
    ) -> None:
        self.placements = (weight, *bias)
        self.A, self.D, self.m = activations, cotangents, len(cotangents)

    @override
    def squared_norms(self) -> Tensor:
        K = self.A @ self.A.T
        step = max(1, pieces(self.D).temporary // max(1, self.D[0].nbytes))
        return torch.cat([torch.matmul(K, D).mul_(D).sum((1, 2)) for D in self.D.split(step)])

    @override
    def gramian(self) -> Tensor:
        K = self.A @ self.A.T
        if len(self.placements) > 1:
            K += 1
        m, n, o = self.D.shape
        D, G = self.D.flatten(1), self.D.new_empty(m, m)
        step = min(m, max(1, pieces(D).dropped // max(1, n * o * D.element_size())))
        weighted = self.D.new_empty(step, n, o)  # one for all: fresh memory is slow
        for begin in range(0, m, step):
            some = self.D[begin : begin + step]
            part = torch.bmm(K.expand(len(some), n, n), some, out=weighted[: len(some)])
            torch.mm(part.flatten(1), D.T, out=G[begin : begin + step])
        return G

    @override
    def rows(self) -> Tensor:
        placement = self.placements[0]
        if placement.transposed and placement.where is None:
            return torch.matmul(self.D.transpose(1, 2), self.A).flatten(1)  # (m, o, i)
        return placement.placed(torch.matmul(self.A.T, self.D))  # (m, i, o)

    @override
    def blocks(self, width: int) -> Iterator[Tensor]:
        placement = self.placements[0]
        if placement.where is not None:
            yield self.rows()
        elif placement.transposed:
            for D in self.D.split(max(1, width // self.A.shape[1]), dim=2):
                yield torch.matmul(D.transpose(1, 2), self.A).flatten(1)
        else:
            for A in self.A.split(max(1, width // self.D.shape[2]), dim=1):
                yield torch.matmul(A.T, self.D).flatten(1)

    @override
    def split(self) -> list[Contribution]:
        placement, *bias = self.placements
        biases: list[Contribution] = [Rows(self.D.sum(dim=1), place) for place in bias]
        return [SharedActivations(self.A, self.D, placement), *biases]

    @override
    def gradients(self, weights: Tensor) -> list[Tensor]:
        D = (weights.to(self.D.dtype) @ self.D.flatten(1)).view(self.D.shape[1:])
        placement, *bias = self.placements
        return [matrix_gradient(self.A, D, placement), *[D.sum(dim=0) for _ in bias]]

    @override
    def factors(self) -> Factors | None:
        weight, *bias = self.placements
        if weight.where is not None:
            return None
        A, D, has_bias = self.A, self.D, bool(bias)
        return Factors(
            ("shared activations", A.shape[1], D.shape[2], weight.transposed, has_bias),
            (tuple(A.shape), tuple(D.shape)),
            lambda: (A, D),
            partial(shared_cross_gramian, bias=has_bias),
        )

"""Gradients of a parameter that is several matrices, as the weights of experts are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.engines.tape.contributions._base import Contribution
from lightning_jd.engines.tape.graph import Placement


class Matrices(Contribution):
    """One contribution per matrix, whose entries are next to each other.

    Args:
        parts: One per matrix, in their order.
        placement: Where all of them are in the parameter, which is consumed as (matrices, i, o).
    """

    def __init__(self, parts: Sequence[Contribution], placement: Placement) -> None:
        self.placements = (placement,)
        self._parts, self.m = parts, parts[0].m

    @override
    def gramian(self) -> Tensor:
        return reduce(add, [part.gramian() for part in self._parts])

    @override
    def squared_norms(self) -> Tensor:
        return reduce(add, [part.squared_norms() for part in self._parts])

    @override
    def rows(self) -> Tensor:
        return self.placements[0].placed(torch.cat([part.rows() for part in self._parts], dim=1))

    @override
    def gradients(self, weights: Tensor) -> list[Tensor]:
        flat = torch.cat([part.gradients(weights)[0] for part in self._parts])
        return [self.placements[0].placed(flat.unsqueeze(0))[0]]

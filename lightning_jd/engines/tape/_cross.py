"""Inner products between the gradients of two graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightning_jd.engines.tape._extracts import Parts
from lightning_jd.engines.tape._tape import Tape
from lightning_jd.engines.tape.contributions import Contribution, merge
from lightning_jd.engines.tape.graph import Placement


class Half(NamedTuple):
    """The rows of one graph, unexpanded; the graph itself is not needed any more.

    Attributes:
        parts: Contributions by parameter.
        like: An empty tensor of the type of the Gramian.
        m: The number of rows.
    """

    parts: dict[int, list[Contribution]]
    like: Tensor
    m: int

    @classmethod
    def of(cls, tape: Tape) -> Half:
        """Those of a tape."""
        return cls(tape.extract(Parts()).found, tape.like(), tape.objectives.m)


def cross(here: Half, there: Half) -> Tensor:
    """The block J Kᵀ of two sets of losses of the same parameters, shape (m of J, m of K)."""
    wide = here.like if here.like.dtype == torch.float64 else there.like
    total = wide.new_zeros(here.m, there.m)
    with torch.no_grad():
        for k in here.parts.keys() & there.parts.keys():
            for one, other in _pairs(here.parts[k], there.parts[k]):
                total += one.cross(other).to(total)
    return total


def _pairs(
    first: Sequence[Contribution], second: Sequence[Contribution]
) -> list[tuple[Contribution, Contribution]]:
    """Contributions to one parameter whose products add up to the block."""
    places = [[_place(part.placements[0]) for part in parts] for parts in (first, second)]
    if len(set(places[0])) == len(first) and sorted(places[0]) == sorted(places[1]):
        of = dict(zip(places[1], second, strict=True))  # each has entries of its own
        return [(part, of[place]) for part, place in zip(first, places[0], strict=True)]
    return [(merge(first), merge(second))]


def _place(placement: Placement) -> bytes:
    """The entries of the parameter that are meant; nothing if that is all of them."""
    return b"" if placement.where is None else np.sort(placement.where).tobytes()

"""Inner products between the gradients of two graphs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lightning_jd.engines.tape._extracts import Parts
from lightning_jd.engines.tape._tape import Tape
from lightning_jd.engines.tape.contributions import Contribution, merge
from lightning_jd.engines.tape.graph import Placement


def cross(here: Tape, there: Tape) -> Tensor:
    """The block J Kᵀ of two sets of losses of the same parameters, shape (m of J, m of K)."""
    first, second = here.extract(Parts()).found, there.extract(Parts()).found
    wide = here.like() if here.like().dtype == torch.float64 else there.like()
    total = wide.new_zeros(here.objectives.m, there.objectives.m)
    with torch.no_grad():
        for k in first.keys() & second.keys():
            for one, other in _pairs(first.pop(k), second.pop(k)):
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

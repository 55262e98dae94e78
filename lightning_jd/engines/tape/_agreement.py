"""Compares a program with the rules that it was recorded from."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_jd.engines._columns import from_columns, to_columns
from lightning_jd.engines.tape._certificate import length_of, norm_of, random_vector
from lightning_jd.engines.tape.run import Ledger, Replay

#: How far a program may be from what it was recorded from, relative to the lengths of gradients.
_ALIKE = 1e-4


class Said(NamedTuple):
    """What a program gave: no more than the Gramian and one gradient, so that the rest is free.

    Attributes:
        G: The Gramian.
        v: A vector.
        combined: The rows, combined with the vector, by parameter.
    """

    G: Tensor
    v: Tensor
    combined: dict[int, Tensor]


def said_by(replay: Replay) -> Said:
    """The Gramian and a gradient of a program."""
    v = random_vector(replay.G, spread=1e3)
    combined = {k: to_columns(gradient) for k, gradient in replay.gradients(v).items()}
    return Said(replay.G, v, combined)


def agree(said: Said, ledger: Ledger, parameters: Sequence[Tensor]) -> bool:
    """Whether a program gives the Gramian and the gradients of the code it was recorded from.

    Both do the same operations on the same numbers, so there is next to no rounding between them.

    Args:
        said: What the program gave; its gradients are overwritten.
        ledger: What the code gave.
        parameters: All parameters.
    """
    lengths = ledger.G.diagonal().clamp(min=0).sqrt()
    off = (said.G - ledger.G).abs() - _ALIKE * torch.outer(lengths, lengths)
    if not bool((off <= 0).all()):
        return False
    v, apart = said.v, said.combined
    total = max(norm_of(apart, list(apart)), length_of(ledger.G, v))
    reached: set[int] = set()
    rounded: dict[int, Tensor] = {}
    for k, part in ledger.parts_of_gradients(v):  # one at a time: all of them are another model
        if k not in apart:
            return False
        reached.add(k)
        if part.dtype == apart[k].dtype:
            apart[k] -= part
        else:  # parts are added up before they are rounded
            rounded[k] = rounded[k] + part if k in rounded else part
        del part
    for k, gradient in rounded.items():
        apart[k] -= to_columns(from_columns(gradient, parameters[k]))
    return reached == apart.keys() and norm_of(apart, list(apart)) <= _ALIKE * total


def complain_of_program() -> None:
    """Say that a program was dropped."""
    warnings.warn(
        "A recorded step must do what the rules do, got another result, so the rules are asked in "
        "every step from now on, which is exact but slower. A rule must decide by shapes and by "
        "what it reads with `site.saved`, not by anything else that changes from step to step.",
        RuntimeWarning,
        stacklevel=5,
    )

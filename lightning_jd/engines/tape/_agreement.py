"""Compares a program with the rules that it was recorded from."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_jd.engines._columns import from_columns, to_columns
from lightning_jd.engines.tape._certificate import length_of, norm_of, random_vector
from lightning_jd.engines.tape.run import Ledger, Replay

#: How far a program may be from what it was recorded from, relative to the lengths of gradients.
_ALIKE = 1e-4


def agree(replay: Replay, ledger: Ledger, parameters: Sequence[Tensor]) -> bool:
    """Whether a program gives the Gramian and the gradients of the code it was recorded from.

    Both do the same operations on the same numbers, so there is next to no rounding between them.

    Args:
        replay: What the program gave.
        ledger: What the code gave.
        parameters: All parameters.
    """
    lengths = ledger.G.diagonal().clamp(min=0).sqrt()
    off = (replay.G - ledger.G).abs() - _ALIKE * torch.outer(lengths, lengths)
    v = random_vector(ledger.G, spread=1e3)
    found = replay.gradients(v)
    expected = {k: from_columns(g, parameters[k]) for k, g in ledger.gradients(v).items()}
    if found.keys() != expected.keys() or bool((off > 0).any()):
        return False
    total = max(norm_of(expected, list(expected)), length_of(ledger.G, v))
    apart = {k: to_columns(found[k]).double() - to_columns(expected[k]).double() for k in found}
    return norm_of(apart, list(apart)) <= _ALIKE * total


def complain_of_program() -> None:
    """Say that a program was dropped."""
    warnings.warn(
        "A recorded step must do what the rules do, got another result, so the rules are asked in "
        "every step from now on, which is exact but slower. A rule must decide by shapes and by "
        "what it reads with `site.saved`, not by anything else that changes from step to step.",
        RuntimeWarning,
        stacklevel=6,
    )

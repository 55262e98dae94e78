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
    if bool((off > 0).any()):
        return False
    v = random_vector(ledger.G, spread=1e3)
    apart = {k: to_columns(gradient) for k, gradient in replay.gradients(v).items()}
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
        stacklevel=6,
    )

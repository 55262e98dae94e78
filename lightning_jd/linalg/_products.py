"""Many programs on a CPU: matrix products find nearly all solutions, rows that are solved drop out.

In contrast to an accelerator, looking at a result costs nothing here: each stage stops when another
round would not pay.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lightning_jd.linalg._conjugate import ConjugateGradients
from lightning_jd.linalg._guess import Guess

# Rounds of the guess before the first look, between two looks, and in all.
FIRST, BETWEEN, LAST = 8, 4, 16
SETTLED = 2.0  # entries of a row that may still change: conjugate gradients repair them
HOPELESS = 0.05  # share of a row that still changes where most eigenvalues are tiny
# A row whose set differs from that of most rows in d entries is a system of d unknowns. It takes
# about d³ operations at a slow pace; products take m² at a fast pace, and some for each entry.
PER_PRODUCT, PER_ENTRY = 0.8, 200.0
MORE = 8  # rounds of the guess before systems: a wrong entry costs its row a second one
BURSTS = 10
STEPS = 6  # in a burst
# The residual of half of the rows after so many bursts where products converge too slowly.
TRIAL, SLOW = 4, 1e-4
SHRINK = 0.8  # share of the rows that is left when it pays to drop the others
SAFETY = 0.7  # of the tolerance, because a residual in float32 is rounded too


class Found(NamedTuple):
    """What the products have found.

    Attributes:
        Z: The solutions, shape (k, m).
        residual: The largest natural residual among the rows that are solved.
        left: The indices of the rows that are not.
        positive: Where the z of these rows are probably positive, shape (len(left), m).
    """

    Z: Tensor
    residual: float
    left: Tensor
    positive: Tensor


def solve_by_products(C: Tensor, Q: Tensor, tolerance: float) -> Found | None:
    """Solve the rows of ``Q`` (k, m) in the precision of ``C``; None where this takes too long."""
    guess = _guess(C, Q)
    if guess is None:
        return None
    Z, rows, worst = torch.zeros_like(Q), torch.arange(len(Q)), 0.0
    if _are_similar(guess.v):
        return Found(Z, worst, rows, guess.iterate(MORE) > 0)
    search = ConjugateGradients(C, Q, guess.v)
    for burst in range(BURSTS + 1):
        residual = search.residual()
        unsolved = ~(residual <= SAFETY * tolerance)  # NaN is not solved
        left = unsolved.nonzero().flatten()
        is_slow = burst == TRIAL and float(residual.median()) > SLOW
        is_over = len(left) == 0 or burst == BURSTS or is_slow
        if is_over or len(left) <= SHRINK * len(rows):
            Z[rows] = search.z
            worst = max(worst, float(residual.masked_fill_(unsolved, 0).amax()))
            rows = rows[left]
            search.keep(left)
        if is_over:
            break
        search.burst(STEPS)
    return Found(Z, worst, rows, search.positive)


def _are_similar(v: Tensor) -> bool:
    """Whether the sets of the rows differ so little that small systems cost less than products."""
    inside = v.clone().gt_(0)
    majority = inside.mean(dim=0).gt_(0.5)
    differences = inside.sub_(majority).abs_().sum(dim=1)
    m = v.shape[1]
    return float(differences.pow(3).mean()) <= PER_PRODUCT * m**2 + PER_ENTRY * m


def _guess(C: Tensor, Q: Tensor) -> Guess | None:
    guess = Guess(C, Q)
    signs = guess.iterate(FIRST).sign()
    for rounds in range(FIRST, LAST, BETWEEN):
        before, signs = signs, guess.iterate(BETWEEN).sign()
        changed = float(before.sub_(signs).count_nonzero()) / len(Q)
        if rounds == FIRST and changed > HOPELESS * len(C):
            return None
        if changed <= SETTLED:
            break
    return guess

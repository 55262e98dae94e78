"""Many programs on a CPU: matrix products find nearly all solutions, rows that are solved drop out.

In contrast to an accelerator, looking at a result costs nothing here: each stage stops when another
round would not pay.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lightning_jd.linalg._conjugate import ConjugateGradients
from lightning_jd.linalg._guess import EXTRAPOLATED_PENALTY, Guess

FIRST, SECOND = 6, 4  # rounds of the guess before its signs are looked at, and again
HOPELESS = 0.1  # share of them that changes meanwhile where most eigenvalues are tiny
EXTRAPOLATIONS = 4  # at most
SETTLED = 5.0  # entries of a row that may still change: what follows repairs them
# A row whose set differs from that of most rows in d entries is a system of d unknowns. It takes
# about d³ operations at a slow pace; products take m² at a fast pace, and some for each entry.
PER_PRODUCT, PER_ENTRY = 1.6, 200.0
BURSTS = 10
STEPS = 8  # in a burst
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
        return Found(Z, worst, rows, guess.v > 0)
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
    guess = Guess(C, Q, EXTRAPOLATED_PENALTY)
    before, signs = guess.iterate(FIRST).sign(), guess.iterate(SECOND).sign()
    if _changes(before, signs) > HOPELESS * len(C):
        return None
    for _ in range(EXTRAPOLATIONS):
        before, signs = signs, guess.extrapolate().sign()
        if _changes(before, signs) <= SETTLED:
            break
    return guess


def _changes(before: Tensor, after: Tensor) -> float:
    """In how many entries a row differs, on average."""
    return float(before.sub_(after).count_nonzero()) / len(after)

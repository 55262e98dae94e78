"""Many programs on a CPU: matrix products find nearly all solutions, rows that are solved drop out.

In contrast to an accelerator, looking at a result costs nothing here: each stage stops when another
round would not pay.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_jd.linalg._conjugate import ConjugateGradients
from lightning_jd.linalg._guess import EXTRAPOLATED_PENALTY, Guess
from lightning_jd.linalg._principal import work

FIRST, SECOND = 6, 4  # rounds of the guess before its signs are looked at, and again
EXTRAPOLATIONS = 4  # at most
SETTLED = 5.0  # entries of a row that may still change: what follows repairs them
# Share of the signs that changes meanwhile where most eigenvalues are tiny, and the penalty that is
# better there. Products would converge too slowly.
HOPELESS, TINY_PENALTY, TINY_EXTRAPOLATIONS = 0.1, 0.05, 2
# What a burst takes for one row, in the unit of :func:`work`.
BURST_CALLS, PER_ENTRY, PER_PRODUCT = 1200, 4, 0.034
BURSTS = 10
STEPS = 8  # in a burst
DIGITS = 3.0  # that a burst gains, until it is known
SHRINK = 0.8  # share of the rows that is left when it pays to drop the others
NEGLIGIBLE = 1e-30  # a residual of 0 has no logarithm
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


def solve_by_products(C: Tensor, Q: Tensor, tolerance: float) -> Found:
    """Solve the rows of ``Q`` (k, m) in the precision of ``C``, unless systems cost less."""
    guess, converges = _guess(C, Q)
    Z, rows, worst = torch.zeros_like(Q), torch.arange(len(Q)), 0.0
    if not converges:
        return Found(Z, worst, rows, guess.v > 0)
    search = ConjugateGradients(C, Q, guess.v)
    tolerance *= SAFETY
    gain, before = DIGITS, 0.0
    for burst in range(BURSTS + 1):
        residual = search.residual()
        if burst > 0:
            gain = before - _digits(residual, tolerance)
        unsolved = ~(residual <= tolerance)  # NaN is not solved
        left = unsolved.nonzero().flatten()
        is_over = len(left) == 0 or burst == BURSTS
        if not is_over:
            bursts = 1 + _digits(residual[left], tolerance) / gain if gain > 0 else math.inf
            is_over = _systems_cost_less(search.positive[left], bursts)
        if is_over or len(left) <= SHRINK * len(rows):
            Z[rows] = search.z
            worst = max(worst, float(residual.masked_fill(unsolved, 0).amax()))
            rows = rows[left]
            if is_over:
                break
            search.keep(left)
            residual = residual[left]
        before = _digits(residual, tolerance)
        search.burst(STEPS)
    return Found(Z, worst, rows, search.positive[left])


def _digits(residual: Tensor, tolerance: float) -> float:
    """How many digits half of the rows still lack."""
    return math.log10(max(float(residual.median()), NEGLIGIBLE) / tolerance)


def _systems_cost_less(positive: Tensor, bursts: float) -> bool:
    """Whether to solve a system for each of these sets costs less than so many bursts."""
    k, m = positive.shape
    burst = BURST_CALLS + PER_ENTRY * m + PER_PRODUCT * m**2
    return work(positive.numpy()) <= bursts * k * burst


def _guess(C: Tensor, Q: Tensor) -> tuple[Guess, bool]:
    """Guess the sets, and whether products can be expected to converge."""
    guess = Guess(C, Q, EXTRAPOLATED_PENALTY)
    before, signs = guess.iterate(FIRST).sign(), guess.iterate(SECOND).sign()
    if _changes(before, signs) > HOPELESS * len(C):
        guess = Guess(C, Q, TINY_PENALTY)
        guess.iterate(SECOND)
        for _ in range(TINY_EXTRAPOLATIONS):
            guess.extrapolate()
        return guess, False
    for _ in range(EXTRAPOLATIONS):
        before, signs = signs, guess.extrapolate().sign()
        if _changes(before, signs) <= SETTLED:
            break
    return guess, True


def _changes(before: Tensor, after: Tensor) -> float:
    """In how many entries a row differs, on average."""
    return float(before.sub_(after).count_nonzero()) / len(after)

"""Guess the active sets of all programs at once, with matrix products only.

Write a solution of ``z >= 0, w = Cz + q >= 0, zᵀw = 0`` as ``z = |x| + x, w = ρ(|x| - x)``: both
are non-negative and never positive together. Then ``Cz + q = w`` reads
``(C + ρI) x = (ρI - C) |x| - q``, a fixed point whose iteration needs one inverse for all ``q``.
The signs of ``x`` settle long before its values: they are the guess; exact pivoting does the rest.

References:
    van Bokhoven, *Piecewise-linear modelling and analysis*, 1981 (the modulus iteration).
"""

import torch
from torch import Tensor

RHO = 0.4  # on a unit diagonal, near the geometric mean of the extreme eigenvalues that one meets
FIRST, BURST, LAST = 12, 6, 48  # iterations before the first check, between checks, and in all
SETTLED = 0.15  # share of rows that may still change: pivoting repairs them at less cost


def guess_positive(C: Tensor, Q: Tensor) -> Tensor:
    """Which entries of z are probably positive, for every row of ``Q`` (k, m)."""
    m = len(C)
    identity = torch.eye(m, dtype=C.dtype, device=C.device)
    N = torch.cholesky_inverse(torch.linalg.cholesky_ex(C + RHO * identity).L)
    # Signs need no digits: single precision halves the cost.
    step = (2 * RHO * N - identity).to(torch.float32)
    constant = (Q @ N).neg_().to(torch.float32)
    x, modulus = constant.clone(), torch.empty_like(constant)
    positive = torch.zeros_like(x, dtype=torch.bool)
    for iteration in range(1, LAST + 1):
        torch.abs(x, out=modulus)
        torch.addmm(constant, modulus, step, out=x)
        if iteration >= FIRST and iteration % BURST == 0:
            before, positive = positive, x > 0
            if (before != positive).any(dim=1).sum() <= SETTLED * len(Q):  # one host sync
                break
    return positive

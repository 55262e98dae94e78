"""Guess the active sets of all programs at once, with matrix products only.

The modulus iteration on ``z >= 0, w = Cz + q >= 0, zᵀw = 0`` in one variable: with
``z = max(v, 0)`` and ``w = ρ max(-v, 0)``, which are never positive together, and
``N = (C + ρI)⁻¹``, a round is

    v  <-  |v| (2ρN - I)  -  2 qN,

one product for all ``q``. The signs of ``v`` settle long before its values: they are the guess.
It is ADMM with the relaxation 2; a smaller one converges more slowly on Gramians of networks.

References:
    van Bokhoven, *Piecewise-linear modelling and analysis*, 1981; Boyd et al., *Distributed
    optimization and statistical learning via the alternating direction method of multipliers*,
    2011 (section 3.4.3).
"""

import torch
from torch import Tensor

# On a unit diagonal the Gramians of networks have a few large eigenvalues, about one for each
# class, and a bulk between 0.03 and 1. Half of this penalty, or twice, needs many more rounds.
PENALTY = 0.7
# For matrices that are singular, or nearly so, whose other eigenvalues are the fewer.
SINGULAR_PENALTY, ROUNDS = 0.2, 40


class Guess:
    """The rounds, in float32: signs need no more digits, and single precision halves the cost.

    Attributes:
        v: Positive where z probably is, shape (k, m); every round writes to it.
    """

    def __init__(self, C: Tensor, Q: Tensor, penalty: float = PENALTY) -> None:
        shifted = C.to(torch.float32, copy=True)
        shifted.diagonal().add_(penalty)
        N = torch.cholesky_inverse(torch.linalg.cholesky_ex(shifted).L)
        self._matrix = N.mul_(2 * penalty)
        if Q is C:  # UPGrad: CN = I - ρN
            self._constant = N.clone()
            self._constant.diagonal().sub_(2)
        else:
            self._constant = torch.mm(Q.to(torch.float32), N).div_(-penalty)
        self._matrix.diagonal().sub_(1)
        self.v = self._constant / 2
        self._modulus = torch.empty_like(self.v)

    def iterate(self, rounds: int) -> Tensor:
        """``v`` after so many more rounds."""
        for _ in range(rounds):
            torch.abs(self.v, out=self._modulus)
            torch.addmm(self._constant, self._modulus, self._matrix, out=self.v)
        return self.v


def guess_positive(C: Tensor, Q: Tensor) -> Tensor:
    """Which entries of z are probably positive, for every row of ``Q`` (k, m)."""
    return Guess(C, Q, SINGULAR_PENALTY).iterate(ROUNDS) > 0

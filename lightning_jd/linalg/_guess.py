"""Guess the active sets of all programs at once, with matrix products only.

The modulus iteration on ``z >= 0, w = Cz + q >= 0, zᵀw = 0`` in one variable: with
``z = max(v, 0)`` and ``w = ρ max(-v, 0)``, which are never positive together, and
``N = (C + ρI)⁻¹``, a round is

    v  <-  |v| (2ρN - I)  -  2 qN,

one product for all ``q``. The signs of ``v`` settle long before its values: they are the guess.
It is ADMM with the relaxation 2; a smaller one converges more slowly on Gramians of networks.
A few rounds in a row tell where they lead to: extrapolation saves a third to a half of them.

References:
    van Bokhoven, *Piecewise-linear modelling and analysis*, 1981; Boyd et al., *Distributed
    optimization and statistical learning via the alternating direction method of multipliers*,
    2011 (section 3.4.3); Scieur, d'Aspremont and Bach, *Regularized nonlinear acceleration*, 2016.
"""

from itertools import pairwise

import torch
from torch import Tensor

# On a unit diagonal the Gramians of networks have a few large eigenvalues, about one for each
# class, and a bulk between 0.03 and 1. Half of this penalty, or twice, needs many more rounds.
PENALTY = 0.7
# With extrapolation a smaller one is better, and 0.4 and 0.6 are as good.
EXTRAPOLATED_PENALTY = 0.5
DEPTH = 6  # rounds from which is extrapolated: more of them gain less than they cost
RIDGE, TINY = 1e-8, 1e-30  # relative to the squared steps, which are known up to 1e-7, and absolute
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
        # Symmetric: transposed, it is stored by rows.
        N = torch.cholesky_inverse(torch.linalg.cholesky_ex(shifted).L).mT
        self._matrix = N.mul_(2 * penalty)
        if Q is C:  # UPGrad: CN = I - ρN
            self._constant = N.clone()
            self._constant.diagonal().sub_(2)
        else:
            self._constant = torch.mm(Q.to(torch.float32), N).div_(-penalty)
        self._matrix.diagonal().sub_(1)
        self.v = self._constant / 2
        self._modulus = torch.empty_like(self.v)
        self._later: Tensor | None = None

    def iterate(self, rounds: int) -> Tensor:
        """``v`` after so many more rounds."""
        for _ in range(rounds):
            torch.abs(self.v, out=self._modulus)
            torch.addmm(self._constant, self._modulus, self._matrix, out=self.v)
        return self.v

    def extrapolate(self) -> Tensor:
        """``v`` after ``DEPTH`` more rounds, extrapolated.

        Of all weighted means of these iterates (also with negative weights), it is the one whose
        step is the shortest. As long as no sign changes, a round is an affine map, of which this
        eliminates ``DEPTH - 1`` eigenvalues.
        """
        if self._later is None:
            self._later = self.v.new_empty(DEPTH, *self.v.shape)
        iterates = [self.v, *self._later]
        for before, after in pairwise(iterates):
            torch.abs(before, out=self._modulus)
            torch.addmm(self._constant, self._modulus, self._matrix, out=after)
        for before, after in reversed(list(pairwise(iterates))):
            after.sub_(before)
        steps = self._later.transpose(0, 1)
        products = torch.bmm(steps, steps.mT).to(torch.float64)
        diagonal = products.diagonal(dim1=1, dim2=2)
        diagonal.add_(RIDGE * diagonal.sum(dim=1, keepdim=True) + TINY)
        shares = torch.linalg.solve_ex(products, products.new_ones(len(steps), DEPTH, 1)).result
        # An iterate is the sum of all steps up to it: a step counts for it and all later ones.
        lengths = shares.flip(1).cumsum(dim=1).flip(1) / shares.sum(dim=1, keepdim=True)
        v = self.v.unsqueeze(1)
        torch.baddbmm(v, lengths.to(torch.float32).mT.contiguous(), steps, out=v)
        return self.v


def guess_positive(C: Tensor, Q: Tensor) -> Tensor:
    """Which entries of z are probably positive, for every row of ``Q`` (k, m)."""
    return Guess(C, Q, SINGULAR_PENALTY).iterate(ROUNDS) > 0

"""Conjugate gradients on the active sets of all programs at once, with matrix products only.

A row asks for ``z >= 0, w = Cz + q >= 0, zᵀw = 0``. On the set P where z is positive, ``w = 0`` is
a linear system. A few steps of conjugate gradients come near to its solution; then the entries that
have the wrong sign change sides, as in block principal pivoting, which would solve it exactly
first. A row whose set stays as it is goes on where it was.

The steps are taken in float32; ``w`` is computed afresh, in the precision of ``C``, before each
burst of them. So every burst gains digits also in float64 (iterative refinement).
"""

from functools import cached_property

import torch
from torch import Tensor

from lightning_jd.linalg._deflation import Deflation

NEGLIGIBLE = 1e-14  # share of a squared residual that float32 cannot lower any more
TINY = 1e-37


class ConjugateGradients:
    """Programs that share ``C`` (m, m), one for each row of ``Q`` (k, m).

    Args:
        C: The matrix, with a unit diagonal.
        Q: The vectors q.
        v: Positive where z probably is; its positive entries are where the search begins.

    Attributes:
        z: The iterate (k, m), never negative.
    """

    def __init__(self, C: Tensor, Q: Tensor, v: Tensor) -> None:
        self._C, self._q = C, Q
        self._single = C.to(torch.float32)
        self.z = v.clamp(min=0).to(C.dtype)
        self._inside = v.clone().gt_(0)  # ones and zeros: cheaper than masks
        self._direction = torch.zeros_like(v)
        self._square = torch.ones_like(v[:, :1])
        self._unchanged = torch.zeros_like(v[:, :1])

    @cached_property
    def _precondition(self) -> Deflation:
        return Deflation(self._single)

    @property
    def positive(self) -> Tensor:
        """The sets as masks (k, m)."""
        return self._inside > 0

    def residual(self) -> Tensor:
        """The natural residual of every row."""
        self._w = torch.addmm(self._q, self.z, self._C)
        size = self.z.amax(dim=1).add_(1)
        return torch.minimum(self.z, self._w).abs_().amax(dim=1).div_(size)

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only; the others are solved."""
        self._q, self.z, self._w = self._q[rows], self.z[rows], self._w[rows]
        self._inside, self._direction = self._inside[rows], self._direction[rows]
        self._square, self._unchanged = self._square[rows], self._unchanged[rows]

    def burst(self, steps: int) -> None:
        """So many steps, and new sets; :meth:`residual` must have been called before."""
        inside = self._inside
        r = self._w.to(torch.float32).mul(inside).neg_()
        self._precondition.factorise(inside)
        y = self._precondition(r, inside)
        square = _dot(r, y)
        p = torch.addcmul(y, self._direction, square / self._square * self._unchanged)
        tiny = square * NEGLIGIBLE + TINY
        move, change = torch.zeros_like(r), torch.zeros_like(r)
        product = torch.empty_like(r)
        for step in range(steps):
            torch.mm(p, self._single, out=product)
            length = square / (_dot(p, product) + tiny)
            move.addcmul_(p, length)
            change.addcmul_(product, length)
            if step + 1 < steps:
                r.addcmul_(product.mul_(inside), length, value=-1)
                y = self._precondition(r, inside)
                before, square = square, _dot(r, y)
                torch.addcmul(y, p, square / (before + tiny), out=p)
        self.z.add_(move)
        slack = self._w.add_(change)
        # The entries of z where it is free, those of -w elsewhere.
        self._inside = torch.lerp(slack.neg_(), self.z, inside.to(slack.dtype)).gt_(0).to(r.dtype)
        self._unchanged = (self._inside - inside).abs_().amax(dim=1, keepdim=True).eq_(0)
        self.z.mul_(self._inside)
        self._direction, self._square = p, square + TINY


def _dot(a: Tensor, b: Tensor) -> Tensor:
    product: Tensor = torch.linalg.vecdot(a, b)
    return product.unsqueeze(1)

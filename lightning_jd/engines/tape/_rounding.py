"""How far the results of two ways may be from each other, and how long gradients are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lightning_jd.linalg import has_float64, in_float64

#: Rounding errors of ordinary passes and of the tape, relative to the length of a gradient: about
#: the square root of the machine precision, below the errors of a wrong rule.
TOLERANCE = {torch.float64: 2e-8, torch.float32: 5e-4, torch.float16: 0.02, torch.bfloat16: 0.05}
#: Rounding errors in units of the machine precision, relative to all gradients together: where
#: terms cancel, as above a normalisation, the sum is as far from zero as this.
_CANCELLED = {torch.float64: 64.0, torch.float32: 64.0, torch.float16: 1.0, torch.bfloat16: 0.5}
#: Rounding errors of a product of rows, in units of the machine precision.
_OF_PRODUCTS = 30.0
#: Numbers below the smallest that count, in units of that.
_VANISHED = 16.0
#: Numbers whose length a CPU measures at a time.
_PIECE = 1 << 15


class Rounding:
    """How far results may be from exact ones.

    Args:
        dtype: The least precise type that takes part.
        v: The vector.
        total: The length of the gradients of all parameters, see :func:`length_of`.
    """

    def __init__(self, dtype: torch.dtype, v: Tensor, total: float) -> None:
        number, self.number = torch.finfo(dtype), torch.finfo(v.dtype)
        self.dtype, self.eps, self.weight = dtype, number.eps, float(v.abs().sum())
        self.vanished = _VANISHED * number.tiny * number.eps * self.weight
        self._cancelled = _CANCELLED[dtype] * number.eps * total

    def of_gradient(self, length: float) -> float:
        """The largest distance of two gradients of one length that are equal in theory."""
        return TOLERANCE[self.dtype] * length + self._cancelled + self.vanished

    def fault(
        self,
        expected: float,
        length: float,
        distance: float,
        squared: float | None = None,
        noise: float = 0.0,
    ) -> tuple[str, float] | None:
        """The wrong quantity of some parameters, and its error.

        Args:
            expected: The length of their gradient for random signs, see :func:`length_of`.
            length: The length of the ordinary gradient.
            distance: The distance of the delivered gradient from it.
            squared: ``vᵀ G v``, with their share of the Gramian, where that is compared.
            noise: Measured rounding errors of an ordinary pass.
        """
        slack = self.of_gradient(expected) + noise
        if not distance <= slack:
            return "gradient", distance
        if squared is None:
            return None
        difference = abs(squared - length**2)
        vanished = self.number.tiny * self.number.eps * self.weight**2
        products = _OF_PRODUCTS * (self.number.eps * expected**2 + vanished)
        between = (max(0.0, squared) ** 0.5 + length) * slack + products
        return None if difference <= between else ("Gramian", difference**0.5)


def length_of(gramian: Tensor, v: Tensor) -> float:
    """About the length of ``Jᵀ v``, if the signs of v are random."""
    lengths = in_float64(v).abs() * in_float64(gramian.diagonal()).clamp(min=0).sqrt()
    return float(lengths.norm())


def squared_length(gramian: Tensor, v: Tensor) -> float:
    """The square of the length of ``Jᵀ v``."""
    return max(0.0, float(in_float64(v) @ in_float64(gramian) @ in_float64(v)))


def norm_of(gradients: Mapping[int, Tensor], parameters: Sequence[int]) -> float:
    """The length of some gradients together; in single precision, small squares would vanish."""
    squares = [norm(gradients[p]) ** 2 for p in parameters if p in gradients]
    return float(sum(squares) ** 0.5)


def norm(gradient: Tensor) -> float:
    """The length of a gradient, in double precision."""
    if not has_float64(gradient.device):
        gradient = gradient.cpu()
    if gradient.device.type != "cpu" or gradient.numel() <= _PIECE:
        return float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
    # a CPU copies all of it to double precision, which may well be the largest tensor of a step
    lengths = [torch.linalg.vector_norm(p, dtype=torch.float64) for p in gradient.split(_PIECE)]
    return float(torch.stack(lengths).norm())

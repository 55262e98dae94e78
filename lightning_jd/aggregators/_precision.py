"""Gramians in float64, and what their own precision can tell from zero."""

import torch
from torch import Tensor

from lightning_jd import linalg


def in_float64(gramian: Tensor) -> Tensor:
    """The Gramian in float64: on its device, or on the host if the device (MPS) has no float64."""
    return linalg.in_float64(gramian.detach())


def relative_tolerance(m: int, precision: torch.dtype) -> float:
    r"""The fraction :math:`10 \sqrt m\, \varepsilon` of the largest value that counts as zero.

    With :math:`\varepsilon` the machine precision of ``precision``, the dtype of the Gramian: m²
    entries with independent errors of a few :math:`\varepsilon` move the eigenvalues of an m x m
    matrix by about that much. It is relative, so that the scale of the gradients does not matter.

    Example:
        >>> import torch
        >>> relative_tolerance(4, torch.float64) == 20 * 2.0**-52
        True
    """
    return float(10 * m**0.5 * torch.finfo(precision).eps)

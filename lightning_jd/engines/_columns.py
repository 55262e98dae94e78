"""Columns of the Jacobian: the real numbers that a parameter consists of.

A complex entry is two columns, its real and its imaginary part. Gradients of PyTorch are the
derivatives by these two, so that inner products over columns are real and exact.
"""

from __future__ import annotations

import torch
from torch import Tensor


def column_count(parameter: Tensor) -> int:
    """How many columns a parameter has."""
    return parameter.numel() * (2 if parameter.is_complex() else 1)


def to_columns(gradient: Tensor) -> Tensor:
    """A gradient as a vector of real numbers, shape (columns,)."""
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    if dense.is_complex():
        dense = torch.view_as_real(dense.resolve_conj())
    return dense.reshape(-1)


def from_columns(columns: Tensor, parameter: Tensor) -> Tensor:
    """A vector of real numbers as a gradient, in shape, type and device of the parameter.

    Example:
        >>> from_columns(torch.tensor([1.0, 2.0]), torch.zeros(1, dtype=torch.complex64))
        tensor([1.+2.j])
    """
    if parameter.is_complex():
        columns = torch.complex(*columns.reshape(*parameter.shape, 2).unbind(-1))
    return columns.reshape(parameter.shape).to(parameter)

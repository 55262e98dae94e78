"""The arguments of a convolution, and its ordinary weight gradient."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Geometry(NamedTuple):
    """Everything about a convolution but its tensors; hashable.

    Attributes:
        kernel: The shape of the weight: (out, in / groups, ...), or (in, out / groups, ...) if
            transposed.
        stride: One number per spatial axis, as are padding, dilation and output_padding.
        padding: See stride.
        dilation: See stride.
        transposed: Whether it is a transposed convolution.
        output_padding: See stride; zeros unless transposed.
        groups: The number of groups of channels.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int

    @property
    def is_plain_2d(self) -> bool:
        """Whether it is an ordinary convolution of images."""
        return len(self.kernel) == 4 and not self.transposed


def weight_gradient(x: Tensor, D: Tensor, geometry: Geometry) -> Tensor:
    """The gradient of the weight, summed over samples, as an ordinary backward gives it.

    Args:
        x: Input, shape (n, in, ...).
        D: Cotangent of the output, shape (n, out, ...).
        geometry: The convolution.
    """
    _, gradient, _ = torch.ops.aten.convolution_backward(
        D,
        x,
        x.new_empty(()).expand(geometry.kernel),  # only its shape is looked at
        None,
        geometry.stride,
        geometry.padding,
        geometry.dilation,
        geometry.transposed,
        geometry.output_padding,
        geometry.groups,
        [False, True, False],
    )
    assert isinstance(gradient, Tensor)
    return gradient

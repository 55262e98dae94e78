"""A convolution as the matrix product that it is: patches of the input times the weight."""

from __future__ import annotations

from math import prod

import torch.nn.functional as F

from lightning_jd.engines.tape.contributions._outer_product import OuterProduct
from lightning_jd.engines.tape.contributions.convolution._contribution import ConvolutionWeight


def patch_sizes(part: ConvolutionWeight) -> tuple[int, int, int] | None:
    """Patches per objective, entries of a patch, and output channels, if there are patches.

    Returns:
        ``None`` if the convolution is not an ordinary one of images.
    """
    geometry, placement = part.geometry, part.placements[0]
    if not geometry.is_plain_2d or geometry.groups > 1:
        return None
    if placement.where is not None or placement.transposed:
        return None
    return part.D.shape[1] * prod(part.D.shape[3:]), prod(geometry.kernel[1:]), geometry.kernel[0]


def unfolded(part: ConvolutionWeight) -> OuterProduct:
    """The same gradients as sums of outer products, if :func:`patch_sizes` knows them.

    Worth its memory where there are few pixels and many channels.
    """
    m, T = part.x.shape[:2]
    geometry = part.geometry
    patches = F.unfold(
        part.x.flatten(0, 1),
        geometry.kernel[2:],
        dilation=geometry.dilation,
        padding=geometry.padding,
        stride=geometry.stride,
    )
    A = patches.view(m, T, *patches.shape[1:]).transpose(2, 3).flatten(1, 2)
    D = part.D.flatten(3).transpose(2, 3).flatten(1, 2)
    return OuterProduct(A, D, part.placements[0], cotangents_first=True)

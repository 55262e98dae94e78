"""Convolutions, transposed or not, in one to three dimensions."""

from __future__ import annotations

from lightning_jd.engines.tape.contributions import Contribution, Rows
from lightning_jd.engines.tape.contributions.convolution import ConvolutionWeight, Geometry
from lightning_jd.engines.tape.rules._registry import Site, register_rule, require


@register_rule("ConvolutionBackward0", 1, saved=("input",))
def weight(site: Site) -> Contribution:
    """The weight: each sample is a convolution of its own."""
    require(site.owners.axis == 0)
    geometry = Geometry(
        kernel=site.shape,
        stride=tuple(site.saved("stride")),
        padding=tuple(site.saved("padding")),
        dilation=tuple(site.saved("dilation")),
        transposed=bool(site.saved("transposed")),
        output_padding=tuple(site.saved("output_padding")),
        groups=int(site.saved("groups")),
    )
    x, D = site.split(site.saved("input")), site.split_cotangent()
    return ConvolutionWeight(x, D, geometry, site.placements[0])


@register_rule("ConvolutionBackward0", 2)
def bias(site: Site) -> Contribution:
    """The bias: the sum of the cotangent over all positions."""
    require(site.owners.axis == 0)
    D = site.split_cotangent()  # (m, T, channels, ...)
    return Rows(D.unsqueeze(3).flatten(3).sum(dim=(1, 3)), site.placements[0])

"""Gradients of convolution weights per objective: one contribution, several exact variants."""

from lightning_jd.engines.tape.contributions.convolution._contribution import ConvolutionWeight
from lightning_jd.engines.tape.contributions.convolution._geometry import Geometry
from lightning_jd.engines.tape.contributions.convolution._unfold import patch_sizes, unfolded

__all__ = ["ConvolutionWeight", "Geometry", "patch_sizes", "unfolded"]

"""Gradients of convolution weights per objective: one contribution, several exact variants."""

from lightning_jd.engines.tape.contributions.convolution._contribution import ConvolutionWeight
from lightning_jd.engines.tape.contributions.convolution._geometry import Geometry

__all__ = ["ConvolutionWeight", "Geometry"]

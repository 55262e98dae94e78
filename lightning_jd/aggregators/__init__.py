"""Aggregators: from a Jacobian, one row per objective, to one direction.

>>> import torch
>>> from lightning_jd.aggregators import UPGrad, resolve
>>> jacobian = torch.tensor([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]])
>>> UPGrad(reg=0)(jacobian)
tensor([0.2924, 1.9006, 1.9006])
>>> resolve("upgrad").weights(jacobian @ jacobian.T)
tensor([1.1109, 0.7894])
"""

from lightning_jd.aggregators._alignedmtl import AlignedMTL
from lightning_jd.aggregators._base import Aggregator, GramianAggregator, Property
from lightning_jd.aggregators._cagrad import CAGrad
from lightning_jd.aggregators._constant import Constant
from lightning_jd.aggregators._dualproj import DualProj
from lightning_jd.aggregators._function import FromFunction
from lightning_jd.aggregators._graddrop import GradDrop
from lightning_jd.aggregators._imtlg import IMTLG
from lightning_jd.aggregators._krum import Krum
from lightning_jd.aggregators._mean import Mean
from lightning_jd.aggregators._mgda import MGDA
from lightning_jd.aggregators._nashmtl import NashMTL
from lightning_jd.aggregators._pcgrad import PCGrad
from lightning_jd.aggregators._registry import AggregatorSpec, available, register, resolve
from lightning_jd.aggregators._rgw import RGW
from lightning_jd.aggregators._sum import Sum
from lightning_jd.aggregators._trimmedmean import TrimmedMean
from lightning_jd.aggregators._upgrad import UPGrad

__all__ = [
    "IMTLG",
    "MGDA",
    "RGW",
    "Aggregator",
    "AggregatorSpec",
    "AlignedMTL",
    "CAGrad",
    "Constant",
    "DualProj",
    "FromFunction",
    "GradDrop",
    "GramianAggregator",
    "Krum",
    "Mean",
    "NashMTL",
    "PCGrad",
    "Property",
    "Sum",
    "TrimmedMean",
    "UPGrad",
    "available",
    "register",
    "resolve",
]

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
from lightning_jd.aggregators._balancer import Balancer
from lightning_jd.aggregators._base import Aggregator, GramianAggregator, Method, Property
from lightning_jd.aggregators._cagrad import CAGrad
from lightning_jd.aggregators._cheaper import with_cheaper_weights
from lightning_jd.aggregators._clip import Clip
from lightning_jd.aggregators._config import ConFIG
from lightning_jd.aggregators._constant import Constant
from lightning_jd.aggregators._crmogm import CRMOGM
from lightning_jd.aggregators._dbmtl import DBMTL
from lightning_jd.aggregators._dualproj import DualProj
from lightning_jd.aggregators._dwa import DWA
from lightning_jd.aggregators._equal import Equal
from lightning_jd.aggregators._excessmtl import ExcessMTL
from lightning_jd.aggregators._fairgrad import FairGrad
from lightning_jd.aggregators._famo import FAMO
from lightning_jd.aggregators._fromfeatures import FromFeatures
from lightning_jd.aggregators._function import FromFunction
from lightning_jd.aggregators._gls import GLS
from lightning_jd.aggregators._graddrop import GradDrop
from lightning_jd.aggregators._gradnorm import GradNorm
from lightning_jd.aggregators._gradvac import GradVac
from lightning_jd.aggregators._imtlg import IMTLG
from lightning_jd.aggregators._imtll import IMTLL
from lightning_jd.aggregators._krum import Krum
from lightning_jd.aggregators._loglosses import LogLosses
from lightning_jd.aggregators._mconfig import MConFIG
from lightning_jd.aggregators._mean import Mean
from lightning_jd.aggregators._memory import Memory, StatefulAggregator, StatefulGramianAggregator
from lightning_jd.aggregators._mgda import MGDA
from lightning_jd.aggregators._moco import MoCo
from lightning_jd.aggregators._modo import MoDo
from lightning_jd.aggregators._nashmtl import NashMTL
from lightning_jd.aggregators._normalized import Normalized
from lightning_jd.aggregators._pcgrad import PCGrad
from lightning_jd.aggregators._primary import Primary
from lightning_jd.aggregators._registry import (
    AggregatorSpec,
    available,
    balancers,
    method_of_call,
    register,
    resolve,
)
from lightning_jd.aggregators._rgw import RGW
from lightning_jd.aggregators._rlw import RLW
from lightning_jd.aggregators._sdmgrad import SDMGrad
from lightning_jd.aggregators._stch import STCH
from lightning_jd.aggregators._step import Step
from lightning_jd.aggregators._sum import Sum
from lightning_jd.aggregators._trimmedmean import TrimmedMean
from lightning_jd.aggregators._upgrad import UPGrad
from lightning_jd.aggregators._uw import UW
from lightning_jd.aggregators._weightsevery import WeightsEvery

__all__ = [
    "CRMOGM",
    "DBMTL",
    "DWA",
    "FAMO",
    "GLS",
    "IMTLG",
    "IMTLL",
    "MGDA",
    "RGW",
    "RLW",
    "STCH",
    "UW",
    "Aggregator",
    "AggregatorSpec",
    "AlignedMTL",
    "Balancer",
    "CAGrad",
    "Clip",
    "ConFIG",
    "Constant",
    "DualProj",
    "Equal",
    "ExcessMTL",
    "FairGrad",
    "FromFeatures",
    "FromFunction",
    "GradDrop",
    "GradNorm",
    "GradVac",
    "GramianAggregator",
    "Krum",
    "LogLosses",
    "MConFIG",
    "Mean",
    "Memory",
    "Method",
    "MoCo",
    "MoDo",
    "NashMTL",
    "Normalized",
    "PCGrad",
    "Primary",
    "Property",
    "SDMGrad",
    "StatefulAggregator",
    "StatefulGramianAggregator",
    "Step",
    "Sum",
    "TrimmedMean",
    "UPGrad",
    "WeightsEvery",
    "available",
    "balancers",
    "method_of_call",
    "register",
    "resolve",
    "with_cheaper_weights",
]

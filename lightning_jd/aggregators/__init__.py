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
from lightning_jd.aggregators._config import ConFIG, MConFIG
from lightning_jd.aggregators._constant import Constant, Mean, Sum
from lightning_jd.aggregators._crmogm import CRMOGM
from lightning_jd.aggregators._dbmtl import DBMTL
from lightning_jd.aggregators._doublesampling import MoDo, SDMGrad
from lightning_jd.aggregators._dualcone import DualProj, Primary, UPGrad
from lightning_jd.aggregators._dwa import DWA
from lightning_jd.aggregators._excessmtl import ExcessMTL
from lightning_jd.aggregators._fairness import FairGrad, NashMTL
from lightning_jd.aggregators._famo import FAMO
from lightning_jd.aggregators._fromfeatures import FromFeatures
from lightning_jd.aggregators._function import FromFunction
from lightning_jd.aggregators._graddrop import GradDrop
from lightning_jd.aggregators._gradnorm import GradNorm
from lightning_jd.aggregators._imtlg import IMTLG
from lightning_jd.aggregators._learned import IMTLL, UW
from lightning_jd.aggregators._memory import Memory, StatefulAggregator, StatefulGramianAggregator
from lightning_jd.aggregators._mgda import MGDA, CappedMGDA
from lightning_jd.aggregators._moco import MoCo
from lightning_jd.aggregators._normalized import Normalized
from lightning_jd.aggregators._norms import LRA, NTK
from lightning_jd.aggregators._pairs import GradVac, PCGrad
from lightning_jd.aggregators._pcd import PCD
from lightning_jd.aggregators._randomweights import RGW, RLW
from lightning_jd.aggregators._rates import ReLoBRaLo, SoftAdapt
from lightning_jd.aggregators._registry import (
    AggregatorSpec,
    available,
    balancers,
    method_of_call,
    register,
    resolve,
)
from lightning_jd.aggregators._robust import Clip, Krum, TrimmedMean
from lightning_jd.aggregators._scalarized import COSMOS, GLS, PBI, STCH, UWSO, Equal, LogLosses
from lightning_jd.aggregators._step import Step
from lightning_jd.aggregators._subjacobians import SubJacobians
from lightning_jd.aggregators._weightsevery import WeightsEvery

__all__ = [
    "COSMOS",
    "CRMOGM",
    "DBMTL",
    "DWA",
    "FAMO",
    "GLS",
    "IMTLG",
    "IMTLL",
    "LRA",
    "MGDA",
    "NTK",
    "PBI",
    "PCD",
    "RGW",
    "RLW",
    "STCH",
    "UW",
    "UWSO",
    "Aggregator",
    "AggregatorSpec",
    "AlignedMTL",
    "Balancer",
    "CAGrad",
    "CappedMGDA",
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
    "ReLoBRaLo",
    "SDMGrad",
    "SoftAdapt",
    "StatefulAggregator",
    "StatefulGramianAggregator",
    "Step",
    "SubJacobians",
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

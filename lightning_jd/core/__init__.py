"""One step of Jacobian descent, for plain PyTorch and for the surfaces above it."""

from lightning_jd.core._backward import backward
from lightning_jd.core._groups import Groups, split_into_groups
from lightning_jd.core._report import GroupReport, Report
from lightning_jd.core._surrogate import surrogate
from lightning_jd.core._update import Update, compute_update
from lightning_jd.core.processes._delivery import COMPLETE, Delivery
from lightning_jd.core.processes._volume import Matrix, volume

__all__ = [
    "COMPLETE",
    "Delivery",
    "GroupReport",
    "Groups",
    "Matrix",
    "Report",
    "Update",
    "backward",
    "compute_update",
    "split_into_groups",
    "surrogate",
    "volume",
]

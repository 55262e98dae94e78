"""One step of Jacobian descent, for plain PyTorch and for the surfaces above it.

The step is :func:`compute_update` of rows that :func:`collect` has made; :func:`backward` is both
in one line. What else is here, surfaces need around a step: the other processes, and what to say.
"""

from lightning_jd.core._accumulator import Accumulator
from lightning_jd.core._arguments import (
    Accumulation,
    BatchNormOption,
    MemoryOption,
    Nonfinite,
    RowsOption,
    check_options,
    old_names,
)
from lightning_jd.core._backward import Loop, backward, full_precision, loss_scale
from lightning_jd.core._losses import in_halves, objectives_of
from lightning_jd.core._report import GroupReport, Report, describe_slow, warn_slow
from lightning_jd.core._step import compute_update
from lightning_jd.core._update import Update, surrogate
from lightning_jd.core.processes._ddp import (
    check_all_reached,
    delivery_to,
    first_reduction_held,
    start_first_reduction,
    unwrapped,
    watch,
)
from lightning_jd.core.processes._delivery import COMPLETE, Delivery
from lightning_jd.core.processes._formats import factors_send_less
from lightning_jd.core.processes._layout import LISTED
from lightning_jd.core.processes._pool import Pool
from lightning_jd.core.processes._replicas import check_replicas
from lightning_jd.core.processes._roll_call import check_peers, report_failure
from lightning_jd.core.rows import collect
from lightning_jd.core.rows._base import Rows
from lightning_jd.core.rows._shards import is_sharded, show_pieces, unsupported_by_pieces
from lightning_jd.engines import Groups, split_into_groups

__all__ = [
    "COMPLETE",
    "LISTED",
    "Accumulation",
    "Accumulator",
    "BatchNormOption",
    "Delivery",
    "GroupReport",
    "Groups",
    "Loop",
    "MemoryOption",
    "Nonfinite",
    "Pool",
    "Report",
    "Rows",
    "RowsOption",
    "Update",
    "backward",
    "check_all_reached",
    "check_options",
    "check_peers",
    "check_replicas",
    "collect",
    "compute_update",
    "delivery_to",
    "describe_slow",
    "factors_send_less",
    "first_reduction_held",
    "full_precision",
    "in_halves",
    "is_sharded",
    "loss_scale",
    "objectives_of",
    "old_names",
    "report_failure",
    "show_pieces",
    "split_into_groups",
    "start_first_reduction",
    "surrogate",
    "unsupported_by_pieces",
    "unwrapped",
    "warn_slow",
]

watch()

"""What every call in a loop of the user's has in common: from losses to ``.grad``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lightning_jd.aggregators import AggregatorSpec, Method, with_cheaper_weights
from lightning_jd.core._losses import objectives_of
from lightning_jd.core._method_cache import method_of_call
from lightning_jd.core._options import Nonfinite, RowsOption, check_options
from lightning_jd.core._precision import loss_scale
from lightning_jd.core._report import Report
from lightning_jd.core._slow import warn_slow
from lightning_jd.core._step import compute_update
from lightning_jd.core._unreached import check_all_reached
from lightning_jd.core.processes._ddp import (
    Reduction,
    first_reduction_held,
    reduction_of,
    start_first_reduction,
    unwrapped,
)
from lightning_jd.core.processes._delivery import COMPLETE
from lightning_jd.core.processes._pool import ALONE, Pool
from lightning_jd.core.rows import collect
from lightning_jd.core.rows._base import Rows
from lightning_jd.core.rows._shards import is_sharded, show_pieces
from lightning_jd.engines import (
    Groups,
    Losses,
    NamedParameters,
    Objectives,
    Parameters,
    Select,
    SplitSpec,
    TapeOptions,
    named_parameters_of,
    split_loss,
)
from lightning_jd.errors import ArgumentError, NonFiniteError

_FIND_UNUSED = "Pass `find_unused_parameters=True` to DistributedDataParallel"


@dataclass(frozen=True)
class Loop:
    """The arguments of :func:`lightning_jd.backward`, and the two halves of a step.

    Raises:
        ArgumentError: If an argument has an invalid value.
    """

    model: Parameters
    method: Method
    params: Select
    rows: RowsOption | None
    groups: Groups
    nonfinite: Nonfinite
    options: TapeOptions
    split: SplitSpec
    scaler: Any
    #: The calls between the user's line and the methods here, for warnings.
    depth: int

    @classmethod
    def of(
        cls,
        model: Parameters,
        aggregator: AggregatorSpec,
        weights_from: str | Tensor,
        **others: Any,
    ) -> Loop:
        """Read the arguments."""
        method = with_cheaper_weights(method_of_call(aggregator), weights_from)
        return cls(model, method, **others)

    def __post_init__(self) -> None:
        check_options(rows=self.rows, nonfinite=self.nonfinite)
        if self.scaler is not None and not hasattr(self.scaler, "is_enabled"):
            raise ArgumentError(
                f"`scaler` must be a torch.amp.GradScaler, got {type(self.scaler).__name__}."
            )

    def named(self) -> NamedParameters:
        """The parameters."""
        model = unwrapped(self.model)
        if isinstance(model, nn.Module) and Pool().size > 1:
            show_pieces(model)
        return named_parameters_of(model)

    def read(
        self, losses: Losses | Objectives, named: NamedParameters
    ) -> tuple[Objectives, Reduction | None]:
        """The losses as objectives, and who reduces their gradients."""
        if isinstance(losses, map):  # what a GradScaler makes of a dict or list
            raise ArgumentError(
                "`losses` must be a tensor, a list of scalars or a dict of named scalars, got map. "
                "Instead of scaler.scale(losses), pass the losses and scaler=scaler."
            )
        is_one = isinstance(losses, Tensor) and losses.numel() == 1 and losses.ndim < 2
        if is_one and self.rows is None:
            assert isinstance(losses, Tensor)
            if self.split is not None:
                losses = split_loss(losses, self.split, parameters=named)
            elif losses.ndim == 0:
                warnings.warn(
                    "`losses` is one scalar, so there is one objective and nothing to aggregate. "
                    "Pass one loss per example (reduction='none') or per task, or split='auto' to "
                    "split the scalar. For a single task, pass {'name': loss}.",
                    UserWarning,
                    stacklevel=1 + self.depth,
                )
        objectives = objectives_of(losses, self.rows)
        reduction = reduction_of(self.model, objectives, named)
        if objectives.m == 0 and reduction is None and not is_sharded(named):
            Objectives.of(losses)  # on a process of its own, there must be a loss
        return objectives, reduction

    def start(
        self,
        named: NamedParameters,
        objectives: Objectives,
        reduction: Reduction | None,
        *,
        keeps: bool,
        retain_graph: bool = False,
    ) -> Rows:
        """Rows that take the losses."""
        is_alone = reduction is None and not is_sharded(named)
        return collect(
            named,
            select=self.params,
            nonfinite=self.nonfinite,
            keeps=keeps or (not is_alone and objectives.kind == "ranks"),
            options=self.options,
            retain_graph=retain_graph,
            pool=ALONE if is_alone else None,
        )

    def add(self, rows: Rows, objectives: Objectives, reduction: Reduction | None) -> None:
        """Hand the losses of a micro-batch over."""
        scale = loss_scale(self.scaler, objectives.device, objectives.m)
        with _undisturbed(rows, reduction):
            rows.add(objectives, scale=1.0 if scale is None else scale)

    def finish(self, rows: Rows, reduction: Reduction | None, retain_graph: bool) -> Report:
        """Add the gradients of all rows to ``.grad``."""
        scaled = self.scaler is not None and self.scaler.is_enabled()
        try:
            with _undisturbed(rows, reduction):
                update = compute_update(
                    rows,
                    self.method,
                    groups=self.groups,
                    overflow="mean" if scaled else "raise",
                    delivery=COMPLETE if reduction is None else reduction.delivery,
                )
        except NonFiniteError as error:
            if scaled or not str(error).startswith("Gradients"):
                raise
            raise NonFiniteError(
                f"{error} If a GradScaler has scaled the losses: pass them unscaled, and the "
                "argument scaler=scaler, which lets it lower its scale."
            ) from error
        warn_slow(update.report.slow, stacklevel=1 + self.depth)
        if reduction is None and not scaled:
            update.deliver(retain_graph)
            return update.report
        wrapper = None if reduction is None else reduction.wrapper
        shared = self.params == "shared"
        check_all_reached(wrapper, rows.named, update, _FIND_UNUSED, shared=shared)
        scalar = update.surrogate()
        start_first_reduction(wrapper, scalar)
        # An ordinary backward pass would reach other leaves too.
        inputs = None if update.combined is None else update.params
        torch.autograd.backward(
            self.scaler.scale(scalar) if scaled else scalar,
            retain_graph=retain_graph and inputs is not None,
            inputs=inputs,
        )
        return update.report


def _undisturbed(rows: Rows, reduction: Reduction | None) -> AbstractContextManager[None]:
    """Neither autocast nor a reduction of gradients, while losses are differentiated."""
    device = rows.named[0][1].device.type
    if reduction is None and not torch.is_autocast_enabled(device):
        return nullcontext()
    return _without_autocast(device, None if reduction is None else reduction.wrapper)


@contextmanager
def _without_autocast(device: str, wrapper: nn.Module | None) -> Iterator[None]:
    with torch.autocast(device, enabled=False), first_reduction_held(wrapper):
        yield

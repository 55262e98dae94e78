"""Jacobian descent with Fabric: the line that replaces ``fabric.backward(loss)``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from lightning_jd.aggregators import AggregatorSpec, method_of_call, with_cheaper_weights
from lightning_jd.core import (
    Groups,
    MemoryOption,
    Nonfinite,
    Report,
    RowsOption,
    delivery_to,
    first_reduction_held,
    full_precision,
    loss_scale,
    objectives_of,
    old_names,
    show_pieces,
    start_first_reduction,
    warn_slow,
)
from lightning_jd.engines import (
    Losses,
    Parameters,
    Select,
    Split,
    SplitSpec,
    named_parameters_of,
)
from lightning_jd.errors import SetupError
from lightning_jd.surfaces._settings import Settings
from lightning_jd.surfaces._splitter import Splitter
from lightning_jd.surfaces._step import compute_step
from lightning_jd.surfaces._support import SHARED_IS_HIDDEN, STATIC_ACCUMULATES, check_sharded

__all__ = ["backward"]

_STRATEGIES = {"SingleDeviceStrategy", "DDPStrategy", "ModelParallelStrategy"}


@old_names(model=2)
def backward(
    fabric: Any,
    losses: Losses,
    model: Parameters,
    aggregator: AggregatorSpec = "upgrad",
    *,
    params: Select = "all",
    rows: RowsOption | None = None,
    groups: Groups = None,
    nonfinite: Nonfinite = "raise",
    memory: MemoryOption = "fast",
    check_every: int = 1000,
    split: SplitSpec = None,
    weights_from: str | Tensor = "parameters",
) -> Report:
    """Aggregate the gradients of several losses into ``.grad``, at any precision of Fabric.

    The arguments after ``fabric`` are those of :func:`lightning_jd.backward`. Pass an aggregator
    object, not its name, if it has a state (random aggregators do).

    Args:
        fabric: The Fabric object: one device, ``strategy="ddp"`` or ``ModelParallelStrategy``.
        losses: The losses, computed with a model returned by ``fabric.setup``.
        model: That model, or its parameters.
        aggregator: The aggregator or balancer.
        params: The parameters to aggregate.
        rows: What one objective is, if the type of the losses does not imply it.
        groups: The parameter groups.
        nonfinite: ``"raise"`` or ``"skip"`` for losses and gradients that are NaN or infinite.
        memory: ``"fast"`` or ``"low"``.
        check_every: The number of steps between two certificates.
        split: How to split a scalar loss, see :func:`lightning_jd.backward`.
        weights_from: The gradients from which the weights are computed, see
            :func:`lightning_jd.backward`.

    Returns:
        The report: Gramian, weights, the path of each parameter, timings.

    Raises:
        SetupError: If the strategy of ``fabric`` is not supported.
        NonFiniteError: If a loss or gradient is NaN or infinite and ``nonfinite="raise"``.
    """
    settings = Settings(
        with_cheaper_weights(method_of_call(aggregator), weights_from),
        rows,
        params,
        groups,
        nonfinite=nonfinite,
        memory=memory,
        check_every=check_every,
        split=Split.of(split),
    )
    _check_supported(fabric, settings)
    # What `setup` returns wraps the model, whose names are the ones that patterns are about.
    module = getattr(model, "_original_module", model)
    if isinstance(module, nn.Module):
        show_pieces(module)
    named = named_parameters_of(module)
    objectives = Splitter(settings.split)(losses) or objectives_of(losses, rows)
    scaler = getattr(fabric.strategy.precision, "scaler", None)
    scale = loss_scale(scaler, fabric.device, objectives.m)
    wrapped: Any = getattr(model, "_forward_module", None)
    if getattr(wrapped, "static_graph", False) and not wrapped.require_backward_grad_sync:
        raise SetupError(f"{STATIC_ACCUMULATES}.")
    with _inside_backward(fabric), full_precision(fabric.device), first_reduction_held(wrapped):
        update = compute_step(objectives, named, settings, scale, delivery_to(wrapped))
    warn_slow(update.report.slow, stacklevel=3)
    scalar = update.surrogate()
    start_first_reduction(wrapped, scalar)
    # An ordinary backward pass would reach other leaves too.
    fabric.backward(scalar, **({} if update.combined is None else {"inputs": update.params}))
    return update.report


def _check_supported(fabric: Any, settings: Settings) -> None:
    strategy = fabric.strategy
    ancestors = {cls.__name__ for cls in type(strategy).__mro__}
    if not ancestors & _STRATEGIES:
        raise SetupError(
            "Jacobian descent with Fabric must run on one device, with strategy='ddp' or with "
            f"ModelParallelStrategy, got {type(strategy).__name__}."
        )
    if "ModelParallelStrategy" in ancestors:
        check_sharded(settings)
    for option in ("find_unused_parameters", "static_graph"):
        if getattr(strategy, "_ddp_kwargs", {}).get(option) and settings.params == "shared":
            raise SetupError(SHARED_IS_HIDDEN.format(option))


@contextmanager
def _inside_backward(fabric: Any) -> Iterator[None]:
    """Tell Fabric that differentiating is on purpose.

    Where the precision scales losses, Fabric raises if somebody differentiates outside of
    ``fabric.backward``, lest the scale be forgotten. We differentiate scaled losses.
    """
    package = type(fabric).__module__.rpartition(".")[0]  # lightning.fabric or lightning_fabric
    wrappers: Any = sys.modules[f"{package}.wrappers"]
    before = wrappers._in_fabric_backward
    wrappers._in_fabric_backward = True
    try:
        yield
    finally:
        wrappers._in_fabric_backward = before

"""Jacobian descent with Fabric: the line that replaces ``fabric.backward(loss)``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from lightning_jd.aggregators import AggregatorSpec
from lightning_jd.core import Groups, Loop, MemoryOption, Nonfinite, Report, RowsOption, old_names
from lightning_jd.engines import Losses, Parameters, Select, SplitSpec, TapeOptions
from lightning_jd.errors import SetupError
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
    _check_strategy(fabric)
    loop = Loop.of(
        model,
        aggregator,
        weights_from,
        params=params,
        rows=rows,
        groups=groups,
        nonfinite=nonfinite,
        options=TapeOptions(memory, check_every=check_every),
        split=split,
        scaler=getattr(fabric.strategy.precision, "scaler", None),
        depth=4,
        deliver=fabric.backward,
    )
    if "ModelParallelStrategy" in _ancestors(fabric):
        check_sharded(params, nonfinite, loop.method)
    for option in ("find_unused_parameters", "static_graph"):
        if getattr(fabric.strategy, "_ddp_kwargs", {}).get(option) and params == "shared":
            raise SetupError(SHARED_IS_HIDDEN.format(option))
    wrapped: Any = getattr(model, "_forward_module", None)
    if getattr(wrapped, "static_graph", False) and not wrapped.require_backward_grad_sync:
        raise SetupError(f"{STATIC_ACCUMULATES}.")
    with _inside_backward(fabric):
        return loop.step(losses)


def _ancestors(fabric: Any) -> set[str]:
    return {cls.__name__ for cls in type(fabric.strategy).__mro__}


def _check_strategy(fabric: Any) -> None:
    if not _ancestors(fabric) & _STRATEGIES:
        raise SetupError(
            "Jacobian descent with Fabric must run on one device, with strategy='ddp' or with "
            f"ModelParallelStrategy, got {type(fabric.strategy).__name__}."
        )


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

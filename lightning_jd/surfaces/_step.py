"""From the losses of a batch to an update, as the settings of a surface want it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from lightning_jd.core import COMPLETE, Delivery, Update, compute_update
from lightning_jd.core._accumulation import Accumulation
from lightning_jd.core._halves import in_halves
from lightning_jd.core.processes._failures import answer
from lightning_jd.core.processes._pool import Pool
from lightning_jd.core.rows._sharded import ShardedAccumulation, is_sharded
from lightning_jd.engines import NamedParameters, Objectives, select
from lightning_jd.errors import NonFiniteError
from lightning_jd.surfaces._settings import Settings

#: Rows of one or several micro-batches.
Collected = Accumulation | ShardedAccumulation


def compute_step(
    objectives: Objectives,
    named: NamedParameters,
    settings: Settings,
    scale: Tensor | None = None,
    delivery: Delivery = COMPLETE,
    retain_graph: bool = False,
) -> Update:
    """Compute the update of one batch, on one process or on all of them.

    Args:
        objectives: The losses.
        named: The parameters.
        settings: The method and its options.
        scale: The factor of a GradScaler. Gradients that are not finite are its business then.
        delivery: What becomes of the gradients on several processes, see :func:`delivery_to`.
        retain_graph: Whether the graph of the losses is kept; otherwise it may be freed.

    Raises:
        NonFiniteError: If a loss or gradient is NaN or infinite, unless that is to be skipped.
        PeerError: If another process has failed.
    """
    objectives = in_halves(settings.aggregator, objectives)
    settings = replace(settings, aggregator=settings.aggregator.turn())  # once, also if repeated
    if Pool().size == 1 and not is_sharded(named):
        try:
            return compute_update(
                objectives,
                select(objectives, named, settings.params),
                settings.aggregator,
                groups=settings.groups,
                memory=settings.memory,
                scale=1.0 if scale is None else scale,
                overflow="raise" if scale is None else "mean",
                # what is not finite is looked for in the same graph
                retain_graph=retain_graph or settings.nonfinite == "skip",
            )
        except NonFiniteError:
            if settings.nonfinite == "raise":
                raise
    # The row of a rank is one gradient. On one process, rows that are not finite are looked for.
    keeps = objectives.kind == "ranks" or Pool().size == 1
    collected = begin(named, settings, keeps=keeps)
    collected.add(objectives, scale=1.0 if scale is None else scale)
    answer(objectives.device)
    return finish(collected, settings, scale, delivery)


def begin(named: NamedParameters, settings: Settings, *, keeps: bool = True) -> Collected:
    """Start to collect the rows of several processes, or (kept) of several micro-batches."""
    if is_sharded(named):
        return ShardedAccumulation(named, settings.params)
    return Accumulation(
        named,
        select=settings.params,
        nonfinite=settings.nonfinite,
        keeps=keeps,
        memory=settings.memory,
    )


def finish(
    collected: Collected,
    settings: Settings,
    scale: Tensor | None = None,
    delivery: Delivery = COMPLETE,
) -> Update:
    """Compute the update of all rows that were collected; arguments as in :func:`compute_step`."""
    return collected.update(
        settings.aggregator,
        groups=settings.groups,
        overflow="raise" if scale is None else "mean",
        delivery=delivery,
    )


def delivery_to(model: Any) -> Delivery:
    """What becomes of the gradients of this process.

    DistributedDataParallel takes the mean over all processes, unless it was told to do something
    else. It waits for the gradient of every parameter, unless it has looked for those that the
    losses of this process do not reach.

    Args:
        model: The model as the strategy has wrapped it.
    """
    everywhere = not getattr(model, "find_unused_parameters", False)
    averaged = (
        isinstance(model, DistributedDataParallel)
        and model.process_group.size() == Pool().size
        and not model._comm_hooks
        and not model.parameters_to_ignore
    )
    return Delivery(everywhere, averaged)

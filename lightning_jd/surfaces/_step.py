"""From the losses of a batch to an update, according to the settings."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from lightning_jd.core import (
    COMPLETE,
    Delivery,
    Pool,
    Rows,
    Update,
    collect,
    compute_update,
    in_halves,
)
from lightning_jd.engines import NamedParameters, Objectives
from lightning_jd.surfaces._settings import Settings


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
        NonFiniteError: If a loss or gradient is NaN or infinite and ``nonfinite="raise"``.
        PeerError: If another process has failed.
    """
    objectives = in_halves(settings.aggregator, objectives)
    # The row of a rank is one gradient, which may as well be kept.
    keeps = objectives.kind == "ranks" and Pool().size > 1
    rows = begin(named, settings, keeps=keeps, retain_graph=retain_graph)
    rows.add(objectives, scale=1.0 if scale is None else scale)
    return finish(rows, settings, scale, delivery)


def begin(
    named: NamedParameters, settings: Settings, *, keeps: bool = True, retain_graph: bool = False
) -> Rows:
    """Start to collect the rows of one micro-batch, or (kept) of several; on all processes."""
    return collect(
        named,
        select=settings.params,
        nonfinite=settings.nonfinite,
        keeps=keeps,
        memory=settings.memory,
        retain_graph=retain_graph,
    )


def finish(
    rows: Rows, settings: Settings, scale: Tensor | None = None, delivery: Delivery = COMPLETE
) -> Update:
    """Compute the update of all rows that were collected; arguments as in :func:`compute_step`."""
    return compute_update(
        rows,
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

"""From the losses of a batch to an update, according to the settings."""

from __future__ import annotations

from torch import Tensor

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
        options=settings.tape,
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

"""From the losses of a batch to an update, as the settings of a surface want it."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from lightning_jd.core import Update, compute_update
from lightning_jd.core._accumulation import Accumulation
from lightning_jd.core._pool import Pool
from lightning_jd.engines import NamedParameters, Objectives, select
from lightning_jd.errors import NonFiniteError
from lightning_jd.surfaces._settings import Settings


class Step(NamedTuple):
    """An update, and how many objectives were left out of it because they were not finite."""

    update: Update
    dropped: int


def compute_step(
    objectives: Objectives,
    named: NamedParameters,
    settings: Settings,
    scale: Tensor | None = None,
    everywhere: bool = True,
    retain_graph: bool = False,
) -> Step:
    """Compute the update of one batch, on one process or on all of them.

    Args:
        objectives: The losses.
        named: The parameters.
        settings: The method and its options.
        scale: The factor of a GradScaler. Gradients that are not finite are its business then.
        everywhere: On several processes, see :meth:`Accumulation.update`.
        retain_graph: Whether the graph of the losses is kept; otherwise it may be freed.

    Raises:
        NonFiniteError: If a loss or gradient is NaN or infinite, unless that is to be skipped.
    """
    if Pool().size == 1:
        try:
            update = compute_update(
                objectives,
                select(objectives, named, settings.params),
                settings.aggregator,
                groups=settings.groups,
                memory=settings.memory,
                scale=1.0 if scale is None else scale,
                overflow="raise" if scale is None else "mean",
                retain_graph=retain_graph,
            )
            return Step(update, 0)
        except NonFiniteError:
            if settings.nonfinite == "raise":
                raise
    # Row by row it is known which of them are finite, and which process has which.
    collected = begin(named, settings)
    collected.add(objectives, scale=1.0 if scale is None else scale)
    return finish(collected, settings, scale, everywhere)


def begin(named: NamedParameters, settings: Settings) -> Accumulation:
    """Start to collect the rows of several micro-batches."""
    return Accumulation(named, select=settings.params, nonfinite=settings.nonfinite)


def finish(
    collected: Accumulation,
    settings: Settings,
    scale: Tensor | None = None,
    everywhere: bool = True,
) -> Step:
    """Compute the update of all rows that were collected; arguments as in :func:`compute_step`."""
    update = collected.update(
        settings.aggregator,
        groups=settings.groups,
        overflow="raise" if scale is None else "mean",
        everywhere=everywhere,
    )
    return Step(update, collected.dropped)


def expects_all(model: Any) -> bool:
    """Whether every process has to deliver the gradient of every parameter.

    DistributedDataParallel waits for all of them, unless it has looked for those that the losses of
    this process do not reach.
    """
    return not getattr(model, "find_unused_parameters", False)

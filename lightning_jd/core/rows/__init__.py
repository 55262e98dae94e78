"""The rows of a step: of live graphs, accumulated over micro-batches, or sharded (FSDP2)."""

from __future__ import annotations

from lightning_jd.core.processes._pool import Pool
from lightning_jd.core.rows._accumulated import AccumulatedRows
from lightning_jd.core.rows._base import Nonfinite, Rows
from lightning_jd.core.rows._graph import DEFAULT_OPTIONS, GraphRows
from lightning_jd.core.rows._sharded import ShardedRows
from lightning_jd.core.rows._shards import is_sharded
from lightning_jd.engines import NamedParameters, Select, TapeOptions


def collect(
    named: NamedParameters,
    *,
    select: Select = "all",
    nonfinite: Nonfinite = "raise",
    keeps: bool = True,
    options: TapeOptions = DEFAULT_OPTIONS,
    retain_graph: bool = False,
    pool: Pool | None = None,
) -> Rows:
    """Start to collect the rows of a step on all processes.

    Args:
        named: The parameters; the same for all micro-batches.
        select: Which of them are aggregated, see :func:`lightning_jd.core.backward`.
        nonfinite: ``"raise"``, or ``"skip"`` to leave out objectives whose loss or gradient is NaN
            or infinite. Parameters in pieces always raise.
        keeps: Whether rows are kept, (m, n) numbers on this process. Otherwise there is one
            micro-batch, whose graph must live until the update, and which is differentiated there.
        options: Those of the tape.
        retain_graph: Whether the graph of the losses is kept; otherwise it may be freed.
        pool: The processes; by default all of them.

    Returns:
        Rows, whose ``add`` takes the losses of a micro-batch.

    Raises:
        SetupError: If parameters are in pieces, but not in one per process.

    Example:
        >>> import torch
        >>> from lightning_jd.aggregators import Mean
        >>> from lightning_jd.core import compute_update
        >>> from lightning_jd.engines import Objectives
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> rows = collect([("x", x)])
        >>> for losses in (x * x, 3 * x[:1]):  # three instances in two micro-batches
        ...     rows.add(Objectives.of(losses))
        >>> compute_update(rows, Mean()).gradients  # the mean of (2, 0), (0, 4) and (3, 0)
        [tensor([1.6667, 1.3333])]
    """
    if is_sharded(named):
        return ShardedRows(named, select=select, keeps=keeps, check_every=options.check_every)
    if keeps:
        return AccumulatedRows(named, select=select, nonfinite=nonfinite, pool=pool)
    return GraphRows(
        named,
        pool=pool,
        select=select,
        nonfinite=nonfinite,
        options=options,
        retain_graph=retain_graph,
    )

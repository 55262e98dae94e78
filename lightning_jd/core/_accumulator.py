"""Micro-batches in plain PyTorch: their rows, aggregated as those of one large batch."""

from __future__ import annotations

from typing import Any

from lightning_jd.aggregators import AggregatorSpec
from lightning_jd.core._arguments import Nonfinite, RowsOption
from lightning_jd.core._backward import Loop
from lightning_jd.core._losses import in_halves
from lightning_jd.core._report import Report
from lightning_jd.core.processes._ddp import Reduction
from lightning_jd.core.rows._base import Rows
from lightning_jd.engines import Groups, Losses, Parameters, Select, SplitSpec, TapeOptions
from lightning_jd.errors import ArgumentError


class Accumulator:
    """Aggregates the gradients of several micro-batches as those of one large batch.

    To call :func:`lightning_jd.backward` for each micro-batch adds up updates that were aggregated
    separately. Here :meth:`add` differentiates the losses of a micro-batch and keeps their m rows
    of n numbers, and :meth:`backward` aggregates all rows at once. The update equals that of the
    large batch: instances are listed, and the row of a task is its mean over micro-batches. It is
    what ``accumulation="step"`` does in the Trainer.

    With DistributedDataParallel, the rows of all processes are aggregated, and the forward passes
    may be inside of ``no_sync()``.

    Args:
        model: The module, or its parameters.
        aggregator: The aggregator or balancer.
        params: The parameters to aggregate; this and the other arguments are those of
            :func:`lightning_jd.backward`.
        rows: What one objective is.
        groups: The parameter groups.
        nonfinite: ``"raise"`` or ``"skip"``.
        split: How to split a scalar loss.
        scaler: The GradScaler of a loop in fp16.

    Example:
        >>> import torch
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> step = Accumulator([x], "mean")
        >>> for losses in (x * x, 3 * x[:1]):  # three instances in two micro-batches
        ...     step.add(losses)
        >>> report = step.backward()
        >>> x.grad  # the mean of (2, 0), (0, 4) and (3, 0)
        tensor([1.6667, 1.3333])
    """

    def __init__(
        self,
        model: Parameters,
        aggregator: AggregatorSpec = "upgrad",
        *,
        params: Select = "all",
        rows: RowsOption | None = None,
        groups: Groups = None,
        nonfinite: Nonfinite = "raise",
        split: SplitSpec = None,
        scaler: Any = None,
    ) -> None:
        self._loop = Loop.of(
            model,
            aggregator,
            "parameters",
            params=params,
            rows=rows,
            groups=groups,
            nonfinite=nonfinite,
            options=TapeOptions(),
            split=split,
            scaler=scaler,
            depth=2,
        )
        self._rows: Rows | None = None
        self._reduction: Reduction | None = None
        self._pieces = 0

    def add(self, losses: Losses) -> None:
        """Differentiate the losses of a micro-batch, and keep their rows.

        Args:
            losses: Those of :func:`lightning_jd.backward`. Their graph is freed.
        """
        loop = self._loop
        named = loop.named()
        objectives, self._reduction = loop.read(losses, named)
        objectives = in_halves(loop.method, objectives, self._pieces)
        if self._rows is None:
            self._rows = loop.start(named, objectives, self._reduction, keeps=True)
        loop.add(self._rows, objectives, self._reduction)
        self._pieces += 1

    def backward(self) -> Report:
        """Aggregate the rows of all micro-batches into ``.grad``, and begin anew.

        Raises:
            ArgumentError: If no losses were added.
        """
        if self._rows is None:
            raise ArgumentError(
                "Accumulator.backward() must follow at least one add(losses), got none."
            )
        rows, reduction = self._rows, self._reduction
        if reduction is not None:  # whether forward passes were inside of `no_sync()` or not
            complete = reduction.delivery._replace(averaged=False)
            reduction = reduction._replace(delivery=complete)
        self._rows, self._reduction, self._pieces = None, None, 0
        return self._loop.finish(rows, reduction, retain_graph=False)

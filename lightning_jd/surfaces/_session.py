"""The one state machine behind every surface for the Trainer.

``training_step`` keeps the losses aside and shows Lightning their mean. ``backward`` turns the
losses into gradients and calls Lightning's own ``backward`` with a scalar that delivers them. All
that happens around these two calls (scaling, accumulation, clipping, hooks, the reducer of
DistributedDataParallel, the optimizer) stays Lightning's.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from lightning_jd._batch_norm import frozen_batch_norm
from lightning_jd.core import (
    Pool,
    Report,
    Rows,
    check_all_reached,
    check_peers,
    check_replicas,
    collect,
    compute_update,
    delivery_to,
    first_reduction_held,
    full_precision,
    in_halves,
    loss_scale,
    objectives_of,
    show_pieces,
    start_first_reduction,
    surrogate,
    warn_slow,
)
from lightning_jd.engines import NamedParameters, Objectives, named_parameters_of
from lightning_jd.errors import AggregatorError, ArgumentError, NonFiniteError
from lightning_jd.surfaces._compile import (
    EagerInstances,
    explained_compile_errors,
    reusable_compiled_graphs,
)
from lightning_jd.surfaces._examples import Examples
from lightning_jd.surfaces._observe import (
    PLAIN_STEPS,
    Pass,
    Seen,
    optimizer_of,
    plain_milliseconds,
    told_apart,
)
from lightning_jd.surfaces._output import Batches, loss_in, unless_scalar, warn_stacked, with_scalar
from lightning_jd.surfaces._promise import Watch
from lightning_jd.surfaces._settings import Settings
from lightning_jd.surfaces._skipped import Skipped
from lightning_jd.surfaces._splitter import Splitter
from lightning_jd.surfaces._start_line import bars_cleared, start_line

_FIND_UNUSED = "Set strategy='ddp_find_unused_parameters_true' (or `find_unused_parameters=True`)"


class Session:
    """The state of one fit: pending losses, rows of micro-batches, counters.

    Args:
        settings: The aggregator and the options.
        announce: Called once, after the first update, with a description of the run.
        skipped: Counts dropped objectives.
        examples: Collects what is done to each example, if that was asked for.

    Attributes:
        report: The report of the last update; ``None`` before the first.
        seen: The losses of the last batch on this process.
        updates: All updates of the last batch; see :meth:`passes`.
        batches: What ``training_step`` gave so far.
        steps: Backward passes that were ours.
    """

    def __init__(
        self,
        settings: Settings,
        announce: Callable[[str], object],
        skipped: Skipped,
        examples: Examples | None = None,
    ) -> None:
        self.settings = settings
        self.report: Report | None = None
        self.seen: Seen | None = None
        self.updates: list[Pass] = []
        self.batches = Batches()
        self.steps = 0
        self.skipped = skipped
        self._examples = examples
        self._announce: Callable[[str], object] | None = announce
        self._eager = EagerInstances(announce, always=settings.split is not None)
        self._splitter = Splitter(settings.split)
        self._pending: Objectives | None = None
        self._rows: Rows | None = None  # of the micro-batches of a step
        self.watch = Watch(settings.aggregator)
        self.measures_plain = False  # beside a few steps, for the report
        self.plain_milliseconds: float | None = None
        self._compared = -1  # the step after which processes were compared

    def training_step(
        self, strategy: Any, original: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Replace ``strategy.training_step``, which is ``original``."""
        self._pending = None
        self.updates = []
        eager = self._eager.around(strategy.lightning_module)
        listening = self._splitter.listening(strategy.lightning_module)
        held = first_reduction_held(strategy.model)
        frozen = frozen_batch_norm() if self.settings.batch_norm == "frozen" else nullcontext()
        with eager, listening, reusable_compiled_graphs(), held, frozen:
            output = original(*args, **kwargs)
        is_automatic = strategy.lightning_module.automatic_optimization
        self.batches.add(is_skipped=is_automatic and output is None)
        if is_automatic:
            self._pending = self._objectives(loss_in(output))
            if self.steps == 0 and self.settings.rows is None and self._pending is not None:
                warn_stacked(self._pending, args)
        if self._pending is None:
            return output
        return with_scalar(output, self._mean(self._pending))

    def backward(
        self,
        strategy: Any,
        original: Callable[..., Any],
        loss: Any,
        optimizer: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Replace ``strategy.backward``, which is ``original``."""
        module = strategy.lightning_module
        if module.automatic_optimization:
            objectives, self._pending = self._pending, None
        else:
            objectives = self._objectives(loss)
        if objectives is None:
            self.batches.got = "one scalar"
            kwargs.pop("name", None)
            check_peers(strategy.root_device, scalar=True)
            return self._deliver(strategy, original, loss, optimizer, *args, **kwargs)
        self._eager.look(objectives)
        self.seen = Seen.of(objectives)
        name = kwargs.pop("name", "")
        named = _parameters(module, args, kwargs)
        before, trainer = self.report, module.trainer
        place = f"batch {trainer.fit_loop.batch_idx} of epoch {trainer.current_epoch}"
        try:
            with full_precision(strategy.root_device), explained_compile_errors():
                keep = bool(kwargs.get("retain_graph"))
                scalar = self._scalar(objectives, named, strategy, loss, retain_graph=keep)
        except (AggregatorError, NonFiniteError) as error:
            raise type(error)(f"In {place}: {error}") from error
        self.steps += 1
        if self.report is not None and self.report is not before:  # not in the middle of a step
            self.skipped.add(self.report, objectives.kind, place)
            name = name or optimizer_of(named, trainer)
            self.updates.append(Pass(name, self.report, self.seen))
            if self._examples is not None and self.report.names:
                self._examples.record(self.updates[-1], trainer.current_epoch)
        if self.report is not None and self._announce is not None:
            slow, kind = self._eager.still_slow(self.report.slow), objectives.kind
            with bars_cleared():
                self._announce(start_line(self.settings.aggregator, self.report, kind, named, slow))
                self._announce = None  # once is enough
                if Pool().rank == 0:
                    warn_slow(slow, stacklevel=1)
        del objectives  # and with them the graph, before hooks and the optimizer need memory
        return self._deliver(strategy, original, scalar, optimizer, *args, **kwargs)

    def _deliver(
        self, strategy: Any, original: Callable[..., Any], scalar: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Lightning's own backward pass, which every process reduces its gradients in."""
        if strategy.lightning_module.automatic_optimization:  # else Lightning does it
            start_first_reduction(strategy.model, scalar)
        return original(scalar, *args, **kwargs)

    def check_replicas(self, trainer: Any) -> None:
        """Compare the parameters of all processes, if that is due after the last step."""
        every, step = self.settings.check_replicas, trainer.global_step
        model = trainer.strategy.model
        if every == 0 or step == 0 or not isinstance(model, DistributedDataParallel):
            return
        if step // every > self._compared // every:
            self._compared = step
            named = named_parameters_of(model.module)
            check_replicas([pair for pair in named if pair[0] not in model.parameters_to_ignore])

    def passes(self) -> list[Pass]:
        """The updates of the last batch, each with a name of its own if there are several."""
        return told_apart(self.updates)

    def forget(self) -> None:
        """Release losses, rows and their graphs; counters and report stay."""
        self._pending = self._rows = None

    def _objectives(self, loss: Any) -> Objectives | None:
        """The losses as rows; ``None`` if there is one scalar, which is not split, or nothing."""
        if (split := self._splitter(loss)) is not None:
            return split
        losses = unless_scalar(loss, self.settings.rows)
        return None if losses is None else objectives_of(losses, self.settings.rows)

    def _scalar(
        self,
        objectives: Objectives,
        named: NamedParameters,
        strategy: Any,
        loss: Any,
        *,
        retain_graph: bool,
    ) -> Tensor:
        """What Lightning differentiates in the place of ``loss``."""
        module = strategy.lightning_module
        pieces = module.trainer.accumulate_grad_batches  # always 1 in manual optimization
        terms = pieces * objectives.m
        scaler = getattr(strategy.precision_plugin, "scaler", None)
        scale = loss_scale(scaler, strategy.root_device, terms)
        delivery = delivery_to(strategy.model)
        accumulates = self.settings.accumulation == "step" and pieces > 1
        self.plain_milliseconds = None
        if self.measures_plain and not accumulates and self.steps in PLAIN_STEPS:
            self.plain_milliseconds = plain_milliseconds(objectives, named)
        if accumulates:
            rows = self._collected(objectives, named, strategy, scale)
        else:
            self._note(first=True)
            objectives = in_halves(self.settings.aggregator, objectives)
            # The row of a rank is one gradient, which may as well be kept.
            keeps = objectives.kind == "ranks" and Pool().size > 1
            rows = self._begun(named, keeps=keeps, retain_graph=retain_graph)
            rows.add(objectives, scale=1.0 if scale is None else scale)
        if rows is None:
            # Nothing to deliver yet: a leaf that nobody else has, so that nobody's hooks run.
            return surrogate(loss, [torch.zeros((), requires_grad=True)], [torch.zeros(())])
        update = compute_update(
            rows,
            self.settings.aggregator,
            groups=self.settings.groups,
            overflow="raise" if scale is None else "mean",  # which is the business of a scaler
            delivery=delivery,
        )
        # In manual optimization, other losses of the batch may reach the rest.
        if module.automatic_optimization:
            shared = self.settings.params == "shared"
            check_all_reached(strategy.model, named, update.params, _FIND_UNUSED, shared=shared)
        self.report = update.report
        if accumulates:
            # Lightning has divided the loss that it shows; these gradients are those of the step.
            return update.surrogate(loss)
        scalar = update.surrogate()
        return scalar if pieces == 1 else scalar / pieces

    def _begun(
        self, named: NamedParameters, *, keeps: bool = True, retain_graph: bool = False
    ) -> Rows:
        """Rows of one micro-batch, or (kept) of several, on all processes."""
        return collect(
            named,
            select=self.settings.params,
            nonfinite=self.settings.nonfinite,
            keeps=keeps,
            options=self.settings.tape,
            retain_graph=retain_graph,
        )

    def _collected(
        self,
        objectives: Objectives,
        named: NamedParameters,
        strategy: Any,
        scale: Tensor | None,
    ) -> Rows | None:
        """The rows of all micro-batches of a step; ``None`` before the last of them."""
        loop = strategy.lightning_module.trainer.fit_loop
        piece = loop.batch_idx % loop.trainer.accumulate_grad_batches
        if first := self._rows is None or piece == 0:
            self._rows = self._begun(named)
        self._note(first=first)
        objectives = in_halves(self.settings.aggregator, objectives, piece)
        self._rows.add(objectives, scale=1.0 if scale is None else scale)
        check_peers(strategy.root_device)  # in every batch, because Lightning waits in every batch
        if loop._should_accumulate():
            return None
        rows, self._rows = self._rows, None
        return rows

    def _note(self, *, first: bool) -> None:
        if self._examples is not None and self.seen is not None:
            self._examples.add(self.seen, first=first, skips=self.settings.nonfinite == "skip")

    def _mean(self, objectives: Objectives) -> Tensor:
        values = objectives.values()
        if objectives.total is not None or self.settings.nonfinite == "raise":
            return objectives.shown()
        finite = torch.isfinite(values)  # no index, for which a device would be waited for
        return torch.where(finite, values, 0).sum() / finite.sum()


def _parameters(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NamedParameters:
    """The parameters of the module, or those that ``manual_backward(..., inputs=...)`` asks for."""
    if args or kwargs.get("gradient") is not None or kwargs.get("create_graph"):
        raise ArgumentError(
            "`manual_backward` of several losses accepts only the arguments `retain_graph`, "
            f"`inputs` and `name`, got {args} {kwargs}. Multiply the losses by constant factors "
            "instead."
        )
    show_pieces(module)
    named = named_parameters_of(module)
    if (inputs := kwargs.get("inputs")) is None:
        return named
    wanted = {id(tensor) for tensor in ([inputs] if isinstance(inputs, Tensor) else inputs)}
    return [(name, tensor) for name, tensor in named if id(tensor) in wanted]

"""The one state machine behind every surface for the Trainer.

``training_step`` keeps the losses aside and shows Lightning their mean. ``backward`` turns the
losses into gradients and calls Lightning's own ``backward`` with a scalar that delivers them. All
that happens around these two calls (scaling, accumulation, clipping, hooks, the reducer of
DistributedDataParallel, the optimizer) stays Lightning's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from lightning_jd.core import (
    Pool,
    Report,
    Rows,
    Update,
    check_peers,
    check_replicas,
    describe_slow,
    in_halves,
    show_pieces,
    surrogate,
    warn_slow,
)
from lightning_jd.engines import NamedParameters, Objectives, named_parameters_of
from lightning_jd.errors import AggregatorError, ArgumentError, NonFiniteError, SetupError
from lightning_jd.surfaces._compile import explained_compile_errors, reusable_compiled_graphs
from lightning_jd.surfaces._eager import EagerInstances
from lightning_jd.surfaces._output import (
    loss_in,
    losses_in,
    objectives_of,
    unless_scalar,
    with_scalar,
)
from lightning_jd.surfaces._precision import full_precision, loss_scale
from lightning_jd.surfaces._settings import Settings
from lightning_jd.surfaces._skipped import Skipped
from lightning_jd.surfaces._splitter import Splitter
from lightning_jd.surfaces._static_graph import first_reduction_held, start_first_reduction
from lightning_jd.surfaces._step import begin, compute_step, delivery_to, finish
from lightning_jd.surfaces._unreached import check_all_reached


class Seen(NamedTuple):
    """The losses of the last batch on this process, detached.

    Attributes:
        kind: ``"tasks"``, ``"instances"``, ``"instances_tasks"`` or ``"ranks"``.
        names: Their names.
        values: Their values, shape (m,); empty if they are unknown.
        shown: The scalar that loggers show.
    """

    kind: str
    names: tuple[str, ...]
    values: Tensor
    shown: Tensor

    @classmethod
    def of(cls, objectives: Objectives) -> Seen:
        """Detach the losses."""
        values, names = objectives.values(), objectives.names
        if not objectives.has_values:
            values, names = values[:0], ()
        return cls(objectives.kind, names, values, objectives.shown())


class Pass(NamedTuple):
    """One update of a batch; in manual optimization there may be several.

    Attributes:
        name: What to call it: the name that ``manual_backward`` was given, or the optimizer whose
            parameters were differentiated, or its number. Empty if it is the only one.
        report: What it was made of.
        seen: Its losses on this process.
    """

    name: str
    report: Report
    seen: Seen


class Session:
    """The state of one fit: pending losses, rows of micro-batches, counters.

    Args:
        settings: The aggregator and the options.
        announce: Called once, after the first update, with a description of the run.
        skipped: Counts dropped objectives.

    Attributes:
        report: The report of the last update; ``None`` before the first.
        seen: The losses of the last batch on this process.
        updates: All updates of the last batch; see :meth:`passes`.
        batches: Training steps that Lightning did not skip.
        steps: Backward passes that were ours.
    """

    def __init__(
        self, settings: Settings, announce: Callable[[str], object], skipped: Skipped
    ) -> None:
        self.settings = settings
        self.report: Report | None = None
        self.seen: Seen | None = None
        self.updates: list[Pass] = []
        self.batches = 0
        self.steps = 0
        self.skipped = skipped
        self._announce: Callable[[str], object] | None = announce
        self._eager = EagerInstances(announce, always=settings.split is not None)
        self._splitter = Splitter(settings.split)
        self._pending: Objectives | None = None
        self._nothing = 0  # batches of this epoch for which `training_step` returned None
        self._got = "no loss"
        self._rows: Rows | None = None  # of the micro-batches of a step
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
        with eager, listening, reusable_compiled_graphs(), held:
            output = original(*args, **kwargs)
        if not strategy.lightning_module.automatic_optimization:
            self.batches += 1
            return output
        self.batches += output is not None  # Lightning skips the others
        self._nothing += output is None
        if (losses := losses_in(output, self.settings.rows)) is not None:
            self._pending = objectives_of(losses, self.settings.rows)
        else:
            self._pending = self._splitter(loss_in(output))
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
            losses = unless_scalar(loss, self.settings.rows)
            if losses is None:
                objectives = self._splitter(loss)
            else:
                objectives = objectives_of(losses, self.settings.rows)
        if objectives is None:
            self._got = "one scalar"
            kwargs.pop("name", None)
            check_peers(strategy.root_device, scalar=True)
            return self._deliver(strategy, original, loss, optimizer, *args, **kwargs)
        self._eager.look(objectives)
        self.seen = Seen.of(objectives)
        name = kwargs.pop("name", "")
        named = _parameters(module, args, kwargs)
        before, place = self.report, _place(module.trainer)
        try:
            with full_precision(strategy.root_device), explained_compile_errors():
                keep = bool(kwargs.get("retain_graph"))
                scalar = self._scalar(objectives, named, strategy, loss, retain_graph=keep)
        except (AggregatorError, NonFiniteError) as error:
            raise type(error)(f"In {place}: {error}") from error
        self.steps += 1
        if self.report is not None and self.report is not before:  # not in the middle of a step
            self.skipped.add(self.report, objectives.kind, place)
            name = name or _optimizer_of(named, module.trainer)
            self.updates.append(Pass(name, self.report, self.seen))
        if self.report is not None and self._announce is not None:
            self._introduce(self._announce, self.report, objectives.kind, named)
            self._announce = None  # once is enough
        del objectives  # and with them the graph, before hooks and the optimizer need memory
        return self._deliver(strategy, original, scalar, optimizer, *args, **kwargs)

    def _deliver(
        self, strategy: Any, original: Callable[..., Any], scalar: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Lightning's own backward pass, which every process reduces its gradients in."""
        if strategy.lightning_module.automatic_optimization:  # else Lightning does it
            start_first_reduction(strategy.model, scalar)
        return original(scalar, *args, **kwargs)

    def check_first_batch(self) -> None:
        """Raise an error if the first batch had nothing to aggregate.

        Raises:
            SetupError: With what was found and what to return instead.
        """
        if self.batches == 1 and self.steps == 0:
            raise SetupError(
                "Jacobian descent requires several losses from `training_step` or "
                f"`manual_backward`, got {self._got} in the first batch. Return the vector, list "
                "or dict of losses (as the output or under the key 'loss'), or set split='auto' "
                "to split the scalar. (If only this batch has a single loss, return "
                f"{{'loss': {{'name': loss}}}}.)"
            )

    def check_epoch(self) -> None:
        """Raise an error if ``training_step`` returned None in all batches of an epoch.

        Raises:
            SetupError: With the number of batches.
        """
        nothing, self._nothing = self._nothing, 0
        if self.batches == 0 and nothing > 0:
            raise SetupError(
                f"`training_step` must return losses, got None in all {nothing} batches of the "
                "epoch. Lightning skips such batches, so nothing was trained."
            )

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
        names = [update.name for update in self.updates]
        if len(names) == 1 and names[0].startswith(_OPTIMIZER):
            names = [""]
        elif len(set(names)) < len(names) or "" in names[:-1] + names[1:]:
            names = [f"backward_{i}" for i in range(len(names))]
        found = zip(self.updates, names, strict=True)
        return [update._replace(name=name) for update, name in found]

    def forget(self) -> None:
        """Release losses, rows and their graphs; counters and report stay."""
        self._pending = self._rows = None

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
        trainer = strategy.lightning_module.trainer
        pieces = trainer.accumulate_grad_batches  # always 1 in manual optimization
        terms = pieces * objectives.m
        scale = loss_scale(strategy.precision_plugin, strategy.root_device, terms)
        if self.settings.accumulation == "step" and pieces > 1:
            return self._accumulated(objectives, named, strategy, loss, scale)
        delivery = delivery_to(strategy.model)
        update = compute_step(
            objectives, named, self.settings, scale, delivery, retain_graph=retain_graph
        )
        self._check_all_reached(strategy, named, update)
        self.report = update.report
        scalar = update.surrogate()
        return scalar if pieces == 1 else scalar / pieces

    def _accumulated(
        self,
        objectives: Objectives,
        named: NamedParameters,
        strategy: Any,
        loss: Tensor,
        scale: Tensor | None,
    ) -> Tensor:
        """Keep rows until the last micro-batch of a step, which delivers the gradient of all."""
        loop = strategy.lightning_module.trainer.fit_loop
        if self._rows is None or loop.batch_idx % loop.trainer.accumulate_grad_batches == 0:
            self._rows = begin(named, self.settings)
        piece = loop.batch_idx % loop.trainer.accumulate_grad_batches
        objectives = in_halves(self.settings.aggregator, objectives, piece)
        self._rows.add(objectives, scale=1.0 if scale is None else scale)
        check_peers(strategy.root_device)  # in every batch, because Lightning waits in every batch
        if loop._should_accumulate():
            # Nothing to deliver yet: a leaf that nobody else has, so that nobody's hooks run.
            return surrogate(loss, [torch.zeros((), requires_grad=True)], [torch.zeros(())])
        rows, self._rows = self._rows, None
        update = finish(rows, self.settings, scale, delivery_to(strategy.model))
        self._check_all_reached(strategy, named, update)
        self.report = update.report
        # Lightning has divided the loss that it shows; these gradients are those of the step.
        return update.surrogate(loss)

    def _check_all_reached(self, strategy: Any, named: NamedParameters, update: Update) -> None:
        # In manual optimization, other losses of the batch may reach the rest.
        if strategy.lightning_module.automatic_optimization:
            check_all_reached(strategy.model, named, update, self.settings)

    def _mean(self, objectives: Objectives) -> Tensor:
        values = objectives.values()
        if objectives.total is not None or self.settings.nonfinite == "raise":
            return objectives.shown()
        finite = torch.isfinite(values)  # no index, for which a device would be waited for
        return torch.where(finite, values, 0).sum() / finite.sum()

    def _introduce(
        self, announce: Callable[[str], object], report: Report, kind: str, named: NamedParameters
    ) -> None:
        """Describe the run: rows, parameters, paths, and slow parameters."""
        numbers = sum(tensor.numel() for _, tensor in named)
        ways = Counter(_way(path, kind) for path in report.paths.values()).most_common()
        line = (
            f"Jacobian descent with {self.settings.aggregator.label}: rows are "
            f"{len(report.names)} {kind.replace('_', ' x ')}, {numbers:,} parameters in "
            f"{len(named)} tensors, computed by "
            + ", ".join(f"{way} ({count})" for way, count in ways)
        )
        slow = self._eager.still_slow(report.slow)
        announce("\n".join([line, describe_slow(slow)]) if slow else line)
        if Pool().rank == 0:
            warn_slow(slow, stacklevel=2)


def _way(path: str, kind: str) -> str:
    """What the start line calls a path: that of every task is a pass of its own, and no defect."""
    return "one pass per task" if kind == "tasks" and path in ("rows", "kernel") else path


_OPTIMIZER = "optimizer_"


def _optimizer_of(named: NamedParameters, trainer: Any) -> str:
    """The only optimizer that updates some parameters; empty if there is none, or several."""
    wanted = {id(tensor) for _, tensor in named}
    if len(trainer.optimizers) == 1:
        return f"{_OPTIMIZER}0"
    for i, optimizer in enumerate(trainer.optimizers):
        if wanted <= {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}:
            return f"{_OPTIMIZER}{i}"
    return ""


def _place(trainer: Any) -> str:
    return f"batch {trainer.fit_loop.batch_idx} of epoch {trainer.current_epoch}"


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

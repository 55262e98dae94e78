"""The updates of a batch, and what can be seen of them: metrics, tasks, time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from lightning_jd.core import GroupReport, Report
from lightning_jd.engines import NamedParameters, Objectives, hooks_silenced
from lightning_jd.metrics import (
    Direction,
    PairwiseCosine,
    TaskWeights,
    conflict_summary,
    noise_and_signal,
    row_norms,
)
from lightning_jd.metrics._alignment import Alignment, of_direction, of_unit
from lightning_jd.metrics._unit import TOLERANCE, unit_gramian

_OPTIMIZER = "optimizer_"


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
    """One update.

    Attributes:
        name: What to call it: the name that ``manual_backward`` was given, or the optimizer whose
            parameters were differentiated, or its number. Empty if it is the only one.
        report: What it was made of.
        seen: Its losses on this process.
    """

    name: str
    report: Report
    seen: Seen


def told_apart(updates: Sequence[Pass]) -> list[Pass]:
    """The updates of a batch, each with a name of its own if there are several."""
    names = [update.name for update in updates]
    if len(names) == 1 and names[0].startswith(_OPTIMIZER):
        names = [""]
    elif len(set(names)) < len(names) or "" in names[:-1] + names[1:]:
        names = [f"backward_{i}" for i in range(len(names))]
    return [update._replace(name=name) for update, name in zip(updates, names, strict=True)]


def optimizer_of(named: NamedParameters, trainer: Any) -> str:
    """The only optimizer that updates some parameters; empty if there is none, or several."""
    wanted = {id(tensor) for _, tensor in named}
    if len(trainer.optimizers) == 1:
        return f"{_OPTIMIZER}0"
    for i, optimizer in enumerate(trainer.optimizers):
        if wanted <= {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}:
            return f"{_OPTIMIZER}{i}"
    return ""


_ByTask = TypeVar("_ByTask", PairwiseCosine, TaskWeights)
#: More tasks than this are not shown one by one: each would be a curve of its own.
MOST_TASKS = 64

#: Those of the gradient norms of examples that are logged.
_QUANTILES = (0.1, 0.5, 0.9)


class Tasks(NamedTuple):
    """The update task by task.

    Attributes:
        names: The tasks of the update; under DDP, those of all processes.
        weights: Shape (m,), or ``None`` where there is no weight per task.
        loss_names: The tasks with a loss on this process.
        losses: Their losses.
    """

    names: tuple[str, ...]
    weights: Tensor | None
    loss_names: tuple[str, ...]
    losses: Tensor


def tasks_of(update: Pass) -> Tasks | None:
    """The tasks of an update; ``None`` if its objectives are instances, or far too many."""
    report, seen = update.report, update.seen
    if seen.kind != "tasks" or len(report.names) > MOST_TASKS:
        return None
    prefix = f"{update.name}/" if update.name else ""
    return Tasks(
        tuple(prefix + name for name in report.names),
        report.known_weights,
        tuple(prefix + name for name in seen.names),
        seen.values,
    )


def with_tasks(kind: type[_ByTask], known: _ByTask | None, names: tuple[str, ...]) -> _ByTask:
    """A metric per task that has these tasks, too; ``None`` is none yet."""
    if known is None:
        return kind(names, sync_on_compute=False)  # every process sees the pooled Gramian
    has = known.names if isinstance(known, PairwiseCosine) else known.labels
    return known if set(names) <= set(has) else known.extended(names)


def direction_of(report: Report) -> Direction | None:
    """The update as a whole, where the report has no weights of the whole."""
    if report.known_weights is not None:
        return None
    parts = [_direction(group) for group in report.groups.values()]
    known = [part for part in parts if part is not None]
    return Direction.joined(known) if known and len(known) == len(parts) else None


def _direction(group: GroupReport) -> Direction | None:
    if group.weights is not None and group.gramian is not None:
        return Direction.of_weights(group.gramian, group.weights)
    if group.products is not None and group.squared_length is not None:
        return Direction(group.products, group.squared_length)
    return None


def values_of(
    update: Pass, *, per_group: bool = False, stationarity: bool = False
) -> dict[str, float]:
    """Everything that is logged of an update, by name; one copy from the device.

    Args:
        update: The update.
        per_group: The metrics of each group of parameters too, if there are several.
        stationarity: The distance to weak stationarity too.
    """
    report = update.report
    names: list[str] = []
    parts: list[Tensor] = []  # on the device, to be copied to the host at once

    def add(prefix: str, of: tuple[str, ...], values: Tensor | None) -> None:
        if values is not None:
            names.extend(prefix + name for name in of)
            parts.append(values)

    if (G := report.known_gramian) is not None:  # a balancer computes no gradients of single losses
        summary = conflict_summary(
            G, report.known_weights, update=direction_of(report), stationarity=stationarity
        )
        add("", summary.names, summary.values)
    add("", ("mean_loss",), update.seen.shown.reshape(1))
    if update.seen.kind == "instances":
        if (norms := norms_of(report)) is not None:
            quantiles = [norms.quantile(q) for q in _QUANTILES]  # a tensor of them would be copied
            add("norm_quantile/", ("10", "50", "90"), torch.stack(quantiles))
        if G is not None and len(G) > 1:
            noise, signal = noise_and_signal(G)
            noise = noise / len(G)  # of the mean
            add("gradient_", ("noise", "signal"), torch.stack([noise, signal]))
            add("", ("signal_to_noise",), (signal / noise.clamp(min=1e-30)).reshape(1))
    if (tasks := tasks_of(update)) is not None:
        add("weight/", tasks.names, tasks.weights)
        add("norm/", tasks.names, None if G is None else row_norms(G))
        add("worse/", tasks.names, worse_of(angles_of(report)))
        add("loss/", tasks.loss_names, tasks.losses)
    if per_group and len(report.groups) > 1:
        for name, group in report.groups.items():
            if group.gramian is None:
                continue
            direction = None if group.weights is not None else _direction(group)
            summary = conflict_summary(group.gramian, group.weights, update=direction)
            add(f"group/{name}/", summary.names, summary.values)
    together = torch.cat([part.to(parts[0]) for part in parts])
    return dict(zip(names, together.tolist(), strict=True))


def norms_of(report: Report) -> Tensor | None:
    """The norms of all rows, where the Gramian or the only group has them."""
    if report.known_gramian is not None:
        return row_norms(report.known_gramian)
    return report.groups[None].norms if None in report.groups else None


def angles_of(report: Report) -> Alignment | None:
    """The angles of each gradient with the update and with the mean, where they are known."""
    if (G := report.known_gramian) is None:
        return None
    C, norms = unit_gramian(G)
    if report.known_weights is not None:
        return of_unit(C, norms, report.known_weights, eps=torch.finfo(G.dtype).eps)
    direction = direction_of(report)
    return None if direction is None else of_direction(C, norms, direction)


def worse_of(angles: Alignment | None) -> Tensor | None:
    """1 for each objective that the update makes worse to first order, else 0."""
    return None if angles is None else (angles.cosines[0] < -TOLERANCE).to(angles.cosines.dtype)


class StepClock:
    """How long a step takes from the start of the batch on, and which share of it is ours."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()

    def start(self) -> None:
        """A batch begins."""
        self._begin = time.perf_counter()

    def cost(self, report: Report, plain: float) -> float:
        """The time of a step in units of a plain step.

        Args:
            report: Of the step.
            plain: The milliseconds of the plain backward pass that was run within it.
        """
        milliseconds = 1000 * (time.perf_counter() - self._begin)
        rest = max(milliseconds - report.milliseconds["total"] - plain, 0.0)
        return (rest + report.milliseconds["total"]) / (rest + plain)

    def shares(self, report: Report) -> dict[str, float]:
        """Shares of the time since :meth:`start`: all of our work, and the aggregator's alone.

        Ours begins with the losses and ends with their gradients. It contains the backward pass,
        which ordinary training needs too.
        """
        milliseconds = 1000 * (time.perf_counter() - self._begin)
        parts = {"time_share": "total", "weights_time_share": "weights"}
        return {
            name: min(report.milliseconds[part] / milliseconds, 1.0)
            for name, part in parts.items()
            if part in report.milliseconds
        }


def is_due(trainer: Any, every: int) -> bool:
    """Whether this batch ends a step that is to be looked at, by the rule of the Trainer itself."""
    if every == 0 or trainer.fit_loop._should_accumulate():
        return False
    return (steps_done(trainer) + 1) % every == 0


def steps_done(trainer: Any) -> int:
    """The number of steps before this one: the horizontal axis of ``self.log``."""
    return int(trainer.fit_loop.epoch_loop._batches_that_stepped)


#: Beside which a plain backward pass is timed; the first ones record and compile.
PLAIN_STEPS = range(3, 8)


def plain_milliseconds(objectives: Objectives, named: NamedParameters) -> float | None:
    """The duration of one pass of the mean of the losses; ``None`` if it cannot be taken.

    No ``.grad`` is touched and no hook runs. On an accelerator nothing is measured, because the
    host would have to wait.
    """
    tensors = [tensor for _, tensor in named if tensor.requires_grad]
    if objectives.device.type != "cpu" or not tensors:
        return None
    weights = torch.full((objectives.m,), 1 / objectives.m)
    begin = time.perf_counter()
    try:
        with hooks_silenced(tensors):
            torch.autograd.grad(
                objectives.outputs,  # type: ignore[arg-type]  # tensors and edges may be mixed
                tensors,
                objectives.cotangents(weights),
                retain_graph=True,
                allow_unused=True,
            )
    except RuntimeError:  # a graph that can be differentiated only once
        return None
    return 1000 * (time.perf_counter() - begin)

"""The ways from losses to gradients: through the Gramian, the Jacobian, or the losses alone."""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from lightning_jd.aggregators import Aggregator, Balancer, GramianAggregator, Method, Step
from lightning_jd.core._answers import direction_from, weights_from
from lightning_jd.core._report import GroupReport
from lightning_jd.core.rows._base import per_parameter
from lightning_jd.core.rows._features import check_overlap, features_gramian
from lightning_jd.engines import (
    NamedParameters,
    Objectives,
    Slow,
    Tape,
    jacobian_with_reasons,
    slow_parameters,
)
from lightning_jd.errors import NonFiniteError

Members = dict[Hashable, NamedParameters]
#: Name of a parameter to its gradient; ``None`` where no objective reaches it.
Found = dict[str, Tensor | None]
Overflow = Literal["raise", "mean"]


@dataclass
class Progress:
    """What the steps of one update leave behind: gradients, reports, paths and durations."""

    found: Found = field(default_factory=dict)
    reports: dict[Hashable, GroupReport] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    slow: dict[str, Slow] = field(default_factory=dict)
    milliseconds: dict[str, float] = field(default_factory=dict)
    last: float = field(default_factory=time.perf_counter)

    def lap(self, name: str) -> None:
        """File the time since the last call under a name."""
        now = time.perf_counter()
        self.milliseconds[name] = self.milliseconds.get(name, 0.0) + 1000 * (now - self.last)
        self.last = now


def plain(
    progress: Progress, objectives: Objectives, named: NamedParameters, scale: float | Tensor
) -> None:
    """Differentiate the sum over tasks of the mean over instances, as ordinary training does."""
    if not named:
        return
    gradients = torch.autograd.grad(
        objectives.outputs,  # type: ignore[arg-type]  # tensors and edges may be mixed
        [tensor for _, tensor in named],
        objectives.cotangents(objectives.plain_weights() * scale),
        retain_graph=True,
        allow_unused=True,
    )
    for (name, _), gradient in zip(named, gradients, strict=True):
        progress.found[name] = None if gradient is None else _unscaled(gradient, scale)
        progress.paths[name] = "plain"
    progress.lap("gradients")


def through_gramian(
    progress: Progress,
    objectives: Objectives,
    members: Members,
    aggregator: GramianAggregator,
    *,
    memory: Literal["fast", "low"],
    scale: float | Tensor,
    overflow: Overflow,
    retain_graph: bool,
) -> None:
    """Gramian of each group, weights of each group, then ``Jᵀ w`` of each group."""
    keep = retain_graph or len(members) > 1  # all groups differentiate the same graph
    tapes = {
        group: Tape(objectives, named, scale=scale, memory=memory, retain_graph=keep)
        for group, named in members.items()
    }
    gramians = {group: tape.gramian() for group, tape in tapes.items()}
    progress.lap("gramian")
    # Before the first group is weighed: a method that keeps a state must not be asked in vain.
    finite = {group: _all_finite(objectives, G, overflow) for group, G in gramians.items()}
    chosen = {}
    for group, G in gramians.items():
        told = step_of(objectives, group)
        even = torch.full_like(G[0], 1 / len(G))
        chosen[group] = weights_from(aggregator, G, told) if finite[group] else even
        progress.reports[group] = GroupReport(G, chosen[group], _names(members[group]))
    progress.lap("weights")
    while tapes:
        group, tape = tapes.popitem()  # and let go of it: the next one needs memory too
        gradients = tape.gradients(chosen[group])
        progress.found.update(zip(_names(members[group]), gradients, strict=True))
        progress.paths.update(tape.paths)
        progress.slow.update(slow_parameters(tape))
    progress.lap("gradients")


def through_jacobian(
    progress: Progress,
    objectives: Objectives,
    members: Members,
    aggregator: Aggregator,
    *,
    scale: float | Tensor,
    overflow: Overflow,
) -> None:
    """The whole matrix, for aggregators that are no weighting of its rows."""
    for group, named in members.items():
        J, slow = jacobian_with_reasons(objectives, named, scale=scale)
        progress.slow.update(slow)
        G = J @ J.T
        progress.lap("gramian")
        finite = _all_finite(objectives, G, overflow)
        told = step_of(objectives, group)
        direction = direction_from(aggregator, J, told) if finite else J.mean(dim=0)
        products, squared_length = J @ direction, direction @ direction
        progress.reports[group] = GroupReport(G, None, _names(named), products, squared_length)
        progress.lap("weights")
        progress.found.update(per_parameter(direction, named))
        progress.paths.update(dict.fromkeys(_names(named), "jacobian"))
        progress.lap("gradients")


def through_values(
    progress: Progress,
    objectives: Objectives,
    named: NamedParameters,
    method: Method,
    *,
    scale: float | Tensor,
    overflow: Overflow,
    retain_graph: bool,
) -> None:
    """No Jacobian: weights first, and then one ordinary backward pass of the weighted losses."""
    weights = weights_first(progress, objectives, named, method, scale, overflow)
    gradients = torch.autograd.grad(
        objectives.outputs,  # type: ignore[arg-type]  # tensors and edges may be mixed
        [tensor for _, tensor in named],
        objectives.cotangents(weights * scale),
        retain_graph=retain_graph,
        allow_unused=True,
    )
    for (name, _), gradient in zip(named, gradients, strict=True):
        progress.found[name] = None if gradient is None else _unscaled(gradient, scale)
    progress.lap("gradients")


def weights_first(
    progress: Progress,
    objectives: Objectives,
    named: NamedParameters,
    method: Method,
    scale: float | Tensor,
    overflow: Overflow,
) -> Tensor:
    """The weights of a balancer, or those from the features, before parameters are looked at.

    Groups of parameters play no part, because losses and features are the same for all of them.
    """
    told = step_of(objectives)
    if told.values is not None and not bool(torch.isfinite(told.values).all()):
        objectives.check_finite()
    if isinstance(method, Balancer):
        G, path = None, "balanced"
        weights = weights_from(method, None, told)
    else:
        assert isinstance(method, GramianAggregator)
        G, path = check_overlap(features_gramian(objectives, scale)), "features"
        progress.lap("gramian")
        even = torch.full_like(G[0], 1 / len(G))
        weights = weights_from(method, G, told) if _all_finite(objectives, G, overflow) else even
    progress.reports[None] = GroupReport(G, weights, _names(named))
    progress.paths |= dict.fromkeys(_names(named), path)
    progress.lap("weights")
    return weights


def step_of(objectives: Objectives, group: Hashable = None) -> Step:
    """What the losses of one process tell a method."""
    losses, is_matrix = objectives.losses, objectives.kind == "instances_tasks"
    columns = losses.shape[1] if is_matrix and isinstance(losses, Tensor) else 1
    values = objectives.values() if objectives.has_values else None
    return Step(objectives.names, values, objectives.kind, group, columns)


def _unscaled(gradient: Tensor, scale: float | Tensor) -> Tensor:
    return gradient if isinstance(scale, float) and scale == 1 else gradient / scale


def _names(named: NamedParameters) -> tuple[str, ...]:
    return tuple(name for name, _ in named)


def _all_finite(objectives: Objectives, G: Tensor, overflow: Overflow) -> bool:
    """One host synchronisation for losses and gradients together."""
    # An inner product of two finite rows is finite: the diagonal tells about all of G.
    finite = torch.isfinite(objectives.values()) & torch.isfinite(G.diagonal())
    if bool(finite.all()):
        return True
    objectives.check_finite()
    if overflow == "mean":
        return False
    bad = [name for name, fine in zip(objectives.names, finite.tolist(), strict=True) if not fine]
    listed = ", ".join(map(repr, bad[:10])) + (", ..." if len(bad) > 10 else "")
    raise NonFiniteError(
        f"Gradients must be finite, got NaN or infinity in those of {len(bad)} of {objectives.m} "
        f"objectives: {listed}. Their losses are finite: look for a square root, a logarithm or a "
        "division at its limit."
    )

"""One step of Jacobian descent: objectives -> Gramian -> weights -> gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lightning_jd.aggregators import Aggregator, Balancer, GramianAggregator, Method
from lightning_jd.core._answers import check_values
from lightning_jd.core._groups import Groups, split_into_groups
from lightning_jd.core._report import Report, total_gramian
from lightning_jd.core._routes import (
    Overflow,
    Progress,
    plain,
    through_gramian,
    through_jacobian,
    through_values,
    weights_first,
)
from lightning_jd.core._surrogate import surrogate
from lightning_jd.engines import Objectives, Selection, hooks_silenced, leaves_reached
from lightning_jd.errors import GraphError


@dataclass(frozen=True)
class Update:
    """Gradients that were computed but not yet added to ``.grad``.

    Attributes:
        params: The parameters that some objective reaches.
        gradients: One per parameter; the list is emptied when they are handed over.
        value: The mean of the losses, a detached scalar.
        report: How they were computed.
        combined: The weighted sum of the losses with its graph, where an ordinary backward pass of
            it is all that is left to do; there are no gradients then.
    """

    params: list[Tensor]
    gradients: list[Tensor]
    value: Tensor
    report: Report
    combined: Tensor | None = None

    def deliver(self, retain_graph: bool = False) -> None:
        """Add the gradients to ``.grad`` of the parameters, and of no other tensor."""
        if self.combined is None:
            self.surrogate().backward()
        else:
            torch.autograd.backward(self.combined, retain_graph=retain_graph, inputs=self.params)

    def surrogate(self) -> Tensor:
        """A scalar whose backward pass adds the gradients.

        It is equal to the mean of the losses, or to their weighted sum if that has to be
        differentiated.
        """
        if self.combined is not None:
            return self.combined
        if not self.params:  # on several processes, this one may have none
            nobody = self.value.new_zeros((), requires_grad=True)
            return surrogate(self.value, [nobody], [torch.zeros_like(nobody)])
        return surrogate(self.value, self.params, self.gradients)


def compute_update(
    objectives: Objectives,
    selection: Selection,
    aggregator: Method,
    *,
    groups: Groups = None,
    memory: Literal["fast", "low"] = "fast",
    scale: float | Tensor = 1.0,
    overflow: Overflow = "raise",
    retain_graph: bool = False,
) -> Update:
    """Compute the gradients of one step of Jacobian descent without touching ``.grad``.

    Selected parameters get ``Jᵀ w`` with ``w = aggregator.weights(J Jᵀ)``, group by group, or
    ``aggregator(J)`` where the aggregator is no weighting; a balancer gives ``w`` from the losses
    alone. The others get their plain gradient, that of the sum over tasks of the mean over
    instances.

    Args:
        objectives: The losses.
        selection: The parameters, from :func:`lightning_jd.engines.select`.
        aggregator: The method.
        groups: ``None``, ``"layer"`` or a function from the name of a parameter to its group.
        memory: ``"fast"`` keeps activation gradients; ``"low"`` keeps less, and ends with an
            ordinary backward where that would still be much.
        scale: Losses are multiplied by it before they are differentiated, and the results divided,
            so that half-precision gradients do not underflow.
        overflow: If losses are finite but gradients are not: ``"raise"``, or ``"mean"`` to weigh
            all rows alike and let a GradScaler skip the step.
        retain_graph: Whether the graph of the losses is kept; otherwise it may be freed.

    Raises:
        NonFiniteError: If a loss, or the gradient of one, is NaN or infinite.
        GraphError: If no objective reaches a parameter.
    """
    aggregator = aggregator.turn()
    check_values(aggregator, known=objectives.has_values)
    known_first = isinstance(aggregator, Balancer) or aggregator.at_features
    if known_first and not selection.plain and (vector := _vector(objectives)) is not None:
        return _combined(objectives, vector, selection, aggregator, scale, overflow)
    progress = Progress()
    begin = progress.last
    tensors = dict(selection.plain + selection.selected)
    is_rows = isinstance(aggregator, Aggregator) and not isinstance(aggregator, GramianAggregator)
    selected = selection.selected
    if groups is not None or is_rows:  # else it is found out by itself
        reached = leaves_reached(objectives)
        selected = [(name, tensor) for name, tensor in selected if id(tensor) in reached]
    members = split_into_groups(selected, groups)
    with hooks_silenced(tensors.values()):  # they run when the gradients are delivered
        plain(progress, objectives, selection.plain, scale)
        if isinstance(aggregator, Balancer) or aggregator.at_features:
            through_values(
                progress,
                objectives,
                selected,
                aggregator,
                scale=scale,
                overflow=overflow,
                retain_graph=retain_graph,
            )
        elif isinstance(aggregator, GramianAggregator):
            through_gramian(
                progress,
                objectives,
                members,
                aggregator,
                memory=memory,
                scale=scale,
                overflow=overflow,
                retain_graph=retain_graph,
            )
        else:
            assert isinstance(aggregator, Aggregator)
            through_jacobian(
                progress, objectives, members, aggregator, scale=scale, overflow=overflow
            )
    progress.milliseconds["total"] = 1000 * (progress.last - begin)
    found = {name: g for name, g in progress.found.items() if g is not None}
    if not found:
        raise nothing_reached(len(tensors))
    return Update(
        [tensors[name] for name in found],
        list(found.values()),
        objectives.shown(),
        _report(objectives, progress),
    )


def nothing_reached(parameters: int) -> GraphError:
    """The error for losses that depend on none of some parameters."""
    return GraphError(
        f"Losses must depend on a parameter, got a graph that reaches none of {parameters}. "
        "Reentrant checkpointing hides them (use `use_reentrant=False`), and so do "
        "`torch.no_grad()` and `detach()`."
    )


def _vector(objectives: Objectives) -> Tensor | None:
    """The losses with their graph, shape (m,); ``None`` if only their places in it are known."""
    losses = objectives.losses
    if isinstance(losses, Tensor):
        return losses.reshape(-1)
    scalars = [loss for loss in losses if isinstance(loss, Tensor)]
    return torch.stack(scalars) if len(scalars) == len(losses) else None


def _combined(
    objectives: Objectives,
    vector: Tensor,
    selection: Selection,
    method: Method,
    scale: float | Tensor,
    overflow: Overflow,
) -> Update:
    """What is left to do is one ordinary backward pass, which need not be ours."""
    progress = Progress()
    begin = progress.last
    weights = weights_first(progress, objectives, selection.selected, method, scale, overflow)
    progress.milliseconds["total"] = 1000 * (progress.last - begin)
    return Update(
        [tensor for _, tensor in selection.selected],
        [],
        objectives.shown(),
        _report(objectives, progress),
        vector @ weights.to(vector),
    )


def _report(objectives: Objectives, progress: Progress) -> Report:
    parts = list(progress.reports.values())
    m, device = objectives.m, objectives.device
    if not parts:  # no parameter is shared by two tasks: plain training
        weights: Tensor | None = objectives.plain_weights()
        gramian: Tensor | None = torch.zeros(m, m, dtype=objectives.dtype, device=device)
    else:
        weights = parts[0].weights if len(parts) == 1 else None
        gramian = total_gramian(parts)
    return Report(
        gramian=gramian,
        weights=weights,
        names=objectives.names,
        paths=progress.paths,
        milliseconds=progress.milliseconds,
        groups=progress.reports,
        slow=progress.slow,
    )

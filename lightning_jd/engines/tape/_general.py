"""Rows that cannot be told apart in one pass, such as tasks: one pass each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from lightning_jd.engines.tape._arrangement import Arrangement
from lightning_jd.engines.tape._contribution import Contribution, Rows
from lightning_jd.engines.tape._differentiate import gradients_of
from lightning_jd.engines.tape._graph import Graph
from lightning_jd.engines.tape._ledger import Ledger
from lightning_jd.engines.tape._owners import Owners
from lightning_jd.engines.tape._placement import Placement
from lightning_jd.engines.tape._plan import Plan, Use
from lightning_jd.engines.tape._shared_activations import (
    SharedActivations,
    cheaper_without_gradients,
    shared_input,
)
from lightning_jd.engines.tape.rules import Site, rule_of

#: An output and the weights of its entries, whose gradient is one row.
Row = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class _Target:
    """Something to differentiate with respect to.

    Attributes:
        parameters: The parameters that it is about.
        what: Those parameters themselves, or the output of the operation that consumes them.
        row: Turns the gradient at the target into what is held of each row.
        contribution: Turns what is held of all rows into a contribution.
        path: What it is called.
    """

    parameters: tuple[int, ...]
    what: Tensor | GradientEdge
    row: Callable[[Tensor], Tensor]
    contribution: Callable[[Tensor], Contribution]
    path: str


def add_rows(
    ledger: Ledger,
    graph: Graph,
    plan: Plan,
    objectives: Objectives,
    parameters: Mapping[int, Tensor],
    scale: float | Tensor,
) -> dict[int, str]:
    """Add the Gramian of some parameters, with one pass per row.

    Args:
        ledger: Where to.
        graph: The graph.
        plan: A plan for one owner of everything.
        objectives: The rows.
        parameters: The parameters, by position.
        scale: What the losses are multiplied by before they are differentiated.

    Returns:
        How each parameter was dealt with.
    """
    dtype = ledger.G.dtype
    targets: list[_Target] = []
    for use in _single_uses(plan, parameters):
        target = _without_gradients(graph, plan, use, objectives.m, dtype)
        target = target or _by_rule(graph, use, dtype)
        if target is not None:
            targets.append(target)
    covered = {position for target in targets for position in target.parameters}
    targets += [_plainly(k, tensor) for k, tensor in parameters.items() if k not in covered]
    held = _Passes(graph, plan, objectives, scale, dtype).run(targets)
    # cotangents of many rows may well outweigh the parameters; an ordinary pass is cheap then
    cotangents = sum(
        found.numel()
        for target, found in zip(targets, held, strict=True)
        if target.path == "kernel" and found is not None
    )
    keeps = cotangents <= 1.5 * sum(parameter.numel() for parameter in parameters.values())
    for target in targets:
        if (found := held.pop(0)) is not None:
            ledger.add(target.contribution(found), keeps=keeps or target.path != "kernel")
    return {position: target.path for target in targets for position in target.parameters}


def _single_uses(plan: Plan, parameters: Collection[int]) -> Iterator[Use]:
    """Uses of whole parameters that have no other use."""
    count: dict[int, int] = {}
    for unit in plan.units:
        for position in unit.parameters:
            count[position] = count.get(position, 0) + len(unit.uses)
    for unit in plan.units:
        use = plan.uses[unit.uses[0]]
        alone = all(position in parameters and count[position] == 1 for position in unit.parameters)
        if alone and use.placements[0].is_whole and use.owners is not None:
            yield use


def _without_gradients(
    graph: Graph, plan: Plan, use: Use, m: int, dtype: torch.dtype
) -> _Target | None:
    if not cheaper_without_gradients(plan, use, m):
        return None
    if (A := shared_input(graph.nodes[use.node], use)) is None:
        return None
    return _Target(
        parameters=tuple(placement.parameter for placement in use.placements),
        what=GradientEdge(graph.nodes[use.node], 0),
        row=lambda gradient: gradient,
        contribution=lambda D: SharedActivations(A.to(dtype), D, use),
        path="kernel",
    )


def _by_rule(graph: Graph, use: Use, dtype: torch.dtype) -> _Target | None:
    """Convolutions: autograd has no fast way to the weight of some, nor to the bias of any."""
    node = graph.nodes[use.node]
    rule = rule_of(node.name(), use.slots[0])
    if node.name() != "ConvolutionBackward0" or rule is None:
        return None

    def row(gradient: Tensor) -> Tensor:
        everyone = Arrangement(Owners(0, np.zeros(gradient.shape[0], dtype=np.int64)), 1)
        found = rule(Site(node, use.slots, (gradient,), everyone, use.placements, dtype))
        assert isinstance(found, Contribution)
        return found.rows()[0]

    position, size = use.placements[0].parameter, use.placements[0].size
    return _Target(
        parameters=(position,),
        what=GradientEdge(node, 0),
        row=row,
        contribution=lambda J: Rows(J, Placement(position, size, (size,))),
        path="rows",
    )


def _plainly(position: int, parameter: Tensor) -> _Target:
    placement = Placement(position, parameter.numel(), tuple(parameter.shape))
    return _Target(
        parameters=(position,),
        what=parameter,
        row=lambda gradient: gradient,
        contribution=lambda J: Rows(J, placement),
        path="rows",
    )


class _Passes:
    """Differentiates all rows, one after the other or all tasks at once."""

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        objectives: Objectives,
        scale: float | Tensor,
        dtype: torch.dtype,
    ) -> None:
        self.graph, self.plan, self.objectives = graph, plan, objectives
        self.scale, self.dtype = scale, dtype

    def run(self, targets: Sequence[_Target]) -> list[Tensor | None]:
        """What is held of all rows at all targets, (m, ...) each; ``None`` if no row arrives."""
        ways = {"one by one": partial(self._one_by_one, targets)}
        if isinstance(self.objectives.losses, tuple) and self.plan.junctions(self.graph.roots):
            ways["all at once"] = partial(self._all_at_once, targets)
        key = (id(self.plan), tuple(target.parameters for target in targets))
        return ways[fastest(key, ways)]()

    def _one_by_one(self, targets: Sequence[_Target]) -> list[Tensor | None]:
        held: list[Tensor | None] = [None] * len(targets)
        places = list(dict.fromkeys(target.what for target in targets))
        for k in range(self.objectives.m):
            output, weight = self.objectives.row(k)
            found = gradients_of([output], [weight * self.scale], places)
            by_place = dict(zip(places, found, strict=True))
            for j, target in enumerate(targets):
                if (gradient := by_place[target.what]) is not None:
                    row = target.row(self._unscaled(gradient))
                    block = held[j]
                    if block is None:
                        shape = (self.objectives.m, *row.shape)
                        block = held[j] = row.new_zeros(shape, dtype=self.dtype)
                    block[k] = row
        return held

    def _all_at_once(self, targets: Sequence[_Target]) -> list[Tensor | None]:
        places = list(dict.fromkeys(target.what for target in targets))
        losses = self.objectives.outputs
        found = gradients_of_tasks(
            self.graph,
            self.plan.records,
            self.plan.junctions(self.graph.roots),
            losses,
            torch.ones_like(losses[0]) * self.scale,
            places,
        )
        by_place = dict(zip(places, found, strict=True))
        del found
        held: list[Tensor | None] = []
        for target in targets:
            gradients = by_place[target.what]
            if gradients is None:
                held.append(None)
            else:
                gradients = self._unscaled(gradients)
                held.append(torch.stack([target.row(gradient) for gradient in gradients])
                            if target.is_transformed else gradients.to(self.dtype))
        return held

    def _unscaled(self, gradient: Tensor) -> Tensor:
        dense = gradient.to_dense() if gradient.is_sparse else gradient
        if isinstance(self.scale, (int, float)) and self.scale == 1:
            return dense
        return dense.to(self.dtype) / self.scale

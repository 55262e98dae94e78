"""Rows that cannot be told apart in one pass, such as tasks: one pass each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import prod

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from lightning_jd.engines._objectives import Objectives
from lightning_jd.engines.tape.contributions import (
    Contribution,
    OuterProduct,
    Rows,
    SharedActivations,
)
from lightning_jd.engines.tape.graph import Graph, Placement, Shape
from lightning_jd.engines.tape.owners import Arrangement, Owners
from lightning_jd.engines.tape.plan import Plan, Use
from lightning_jd.engines.tape.rules import NotApplicableError, Site, rule_at
from lightning_jd.engines.tape.run._ledger import Ledger
from lightning_jd.engines.tape.run._row_passes import Passes, Target


def add_rows(
    ledger: Ledger,
    graph: Graph,
    plan: Plan,
    objectives: Objectives,
    parameters: Mapping[int, Tensor],
    scale: float | Tensor,
    plain: Collection[int] = (),
) -> dict[int, str]:
    """Add the Gramian of some parameters, with one pass per row.

    Args:
        ledger: Where to.
        graph: The graph.
        plan: A plan for one owner of everything.
        objectives: The rows.
        parameters: The parameters, by position.
        scale: What the losses are multiplied by before they are differentiated.
        plain: Parameters whose rows are taken from autograd, with nothing of the tape between.

    Returns:
        How each parameter was dealt with.
    """
    dtype = ledger.G.dtype
    passes = Passes(graph, plan, objectives, scale, dtype)
    own = {k: passes.task_of(plan.leaves[k]) for k in parameters}
    targets: list[Target] = []
    for use in _single_uses(plan, {k for k in parameters if own[k] is None and k not in plain}):
        target = _without_gradients(graph, plan, use, objectives.m, dtype)
        target = target or _by_rule(graph, use, dtype)
        if target is not None:
            targets.append(target)
    covered = {position for target in targets for position in target.parameters}
    targets += [
        _plainly(k, plan.leaves[k], tensor, own[k])
        for k, tensor in parameters.items()
        if k not in covered
    ]
    # cotangents of many rows may well outweigh the parameters; an ordinary pass is cheap then
    room = 1.5 * sum(parameter.numel() for parameter in parameters.values())
    cotangents = sum(
        objectives.m * prod(plan.records[target.node].shapes[0])
        for target in targets
        if target.path == "kernel"
    )
    for target, found in passes.run(targets):
        if found is not None:
            ledger.add(found, keeps=cotangents <= room or target.path != "kernel")
        del found  # the next passes need the memory
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
) -> Target | None:
    """A matrix weight ``W`` in ``b + x W``, if :class:`SharedActivations` takes fewer operations.

    What meets the weight is asked of the rule, with a cotangent that nobody looks at.
    """
    shape, weight = plan.records[use.node].shapes[0], use.placements[0]
    if len(shape) != 2 or len(weight.shape) != 2 or not _shared_is_cheaper(shape, weight, m):
        return None
    node = graph.nodes[use.node]
    nothing = torch.zeros((), dtype=dtype, device=node._input_metadata[0].device).expand(shape)
    try:
        part = _one_row(node, use, nothing, dtype)
    except NotApplicableError:
        return None
    if not isinstance(part, OuterProduct) or part.cotangents_first:
        return None
    return Target(
        parameters=tuple(placement.parameter for placement in use.placements),
        node=use.node,
        what=GradientEdge(node, 0),
        row=None,
        contribution=lambda D: SharedActivations(part.A[0], D, *use.placements),
        path="kernel",
    )


def _shared_is_cheaper(output: Shape, weight: Placement, m: int) -> bool:
    (n, o), i = output, weight.shape[0]
    without = n * n * i + m * n * n * o + m * m * n * o
    return without < m * n * i * o + m * m * i * o


def _one_row(node: Node, use: Use, cotangent: Tensor, dtype: torch.dtype) -> Contribution | None:
    """What a rule makes of a cotangent that belongs to one objective."""
    rule = rule_at(node.name(), use.slots[0]).function
    if rule is None:
        return None
    everyone = Arrangement(Owners(0, np.zeros(cotangent.shape[0], dtype=np.int64)), 1)
    found = rule(Site(node, use.slots, (cotangent,), everyone, use.placements, dtype))
    return found if isinstance(found, Contribution) else Rows(found, use.placements[0])


def _by_rule(graph: Graph, use: Use, dtype: torch.dtype) -> Target | None:
    """Operations whose rule is faster than autograd also for one row."""
    node = graph.nodes[use.node]
    if not rule_at(node.name(), use.slots[0]).for_tasks:
        return None

    def row(gradient: Tensor) -> Tensor:
        found = _one_row(node, use, gradient, dtype)
        assert found is not None
        return found.rows()[0]

    position, size = use.placements[0].parameter, use.placements[0].size
    return Target(
        parameters=(position,),
        node=use.node,
        what=GradientEdge(node, 0),
        row=row,
        contribution=lambda J: Rows(J, Placement(position, size, (size,))),
        path="rows",
    )


def _plainly(position: int, node: int, parameter: Tensor, task: int | None) -> Target:
    placement = Placement(position, parameter.numel(), tuple(parameter.shape))
    return Target(
        parameters=(position,),
        node=node,
        what=parameter,
        row=None,
        contribution=lambda J: Rows(J, placement),
        path="rows",
        task=task,
    )

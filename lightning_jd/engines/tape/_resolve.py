"""Decides who owns what in this step: proven owners are taken from the plan, others are probed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lightning_jd.engines.tape._arrangement import Arrangement
from lightning_jd.engines.tape._backward_pass import Cotangents, run
from lightning_jd.engines.tape._graph import Graph
from lightning_jd.engines.tape._owners import Owners, Shape
from lightning_jd.engines.tape._plan import Plan
from lightning_jd.engines.tape._probe import owners_seen, random_scales, random_weights
from lightning_jd.engines.tape._units import Use

NodeOwners = Sequence[Owners | None]


@dataclass(frozen=True)
class ResolvedUse:
    """A use whose owners are known.

    Attributes:
        position: Its position in the plan.
        use: What the plan says of it.
        owners: The owners of each output of the node.
        arrangement: Sorts the first output by owner; ``None`` if other outputs matter too.
    """

    position: int
    use: Use
    owners: NodeOwners
    arrangement: Arrangement | None


@dataclass(frozen=True)
class Resolution:
    """The uses that contributions can be had from, and the parameters that need rows instead.

    Attributes:
        uses: Uses with owners.
        lost: Parameters with a use that has no owners.
    """

    uses: list[ResolvedUse]
    lost: frozenset[int]


def resolve(graph: Graph, plan: Plan, losses: Tensor) -> Resolution:
    """Find the owners of every use.

    Args:
        graph: The graph below the losses.
        plan: The plan for it.
        losses: Shape (b,) or (b, k); the owners are the b instances.
    """
    unproven = sorted({use.node for use in plan.uses if use.owners is None})
    probed = _probe(graph, plan, losses, unproven) if unproven else {}
    lost: set[int] = set()
    for use in plan.uses:
        if use.owners is None and probed[use.node] is None:
            lost.update(placement.parameter for placement in use.placements)
    if any(parameter < 0 for parameter in lost):  # the result of a computation on parameters
        lost |= plan.computed
    lost = {parameter for parameter in lost if parameter >= 0}
    needs_computed = bool(plan.computed - lost)
    uses = []
    for position, use in enumerate(plan.uses):
        parameters = {placement.parameter for placement in use.placements}
        is_wanted = needs_computed if min(parameters) < 0 else not parameters <= lost
        owners = use.owners if use.owners is not None else probed[use.node]
        if is_wanted and owners is not None:
            arrangement = _arrangement(plan, position, use, owners, losses.shape[0])
            uses.append(ResolvedUse(position, use, owners, arrangement))
    return Resolution(uses, frozenset(lost))


def _arrangement(
    plan: Plan, position: int, use: Use, owners: NodeOwners, b: int
) -> Arrangement | None:
    if position in plan.arrangements:
        return plan.arrangements[position]
    first, *others = owners
    found = None
    if first is not None and not any(others):
        first = _along_some_axis(first, plan.records[use.node].shapes[0])
        found = None if first is None else Arrangement(first, b)
    if use.owners is not None:
        plan.arrangements[position] = found
    return found


def _along_some_axis(owners: Owners, shape: Shape) -> Owners | None:
    if owners.axis is not None:
        return owners
    return Owners(0, np.repeat(owners.ids, shape[0])) if shape else None


def _probe(
    graph: Graph, plan: Plan, losses: Tensor, nodes: Sequence[int]
) -> dict[int, NodeOwners | None]:
    weights = torch.ones_like(losses)
    scales = random_scales(len(losses), losses)
    if losses.ndim == 2:
        # losses of one instance might cancel each other: weigh them at random
        weights *= random_weights(losses.shape[1], losses)
    scaled = weights * (scales if losses.ndim == 1 else scales.unsqueeze(1))
    ends = plan.ends_of(nodes)
    seen: list[dict[int, Cotangents]] = [{}, {}]
    for found, grad_outputs in zip(seen, (weights, scaled), strict=True):
        run(graph, [losses], [grad_outputs], nodes, ends, found.__setitem__)
    return {node: _all_seen(seen[0].pop(node, ()), seen[1].pop(node, ()), scales) for node in nodes}


def _all_seen(plain: Cotangents, scaled: Cotangents, scales: Tensor) -> NodeOwners | None:
    found: list[Owners | None] = []
    for first, second in zip(plain, scaled, strict=True):
        if first is None or second is None:
            found.append(None)
        elif (owners := owners_seen(first, second, scales)) is not None:
            found.append(owners)
        else:
            return None
    return found

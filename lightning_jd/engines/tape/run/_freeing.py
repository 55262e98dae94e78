"""Whether the graph can be freed in the pass for the Gramian, and whether that saves memory."""

from __future__ import annotations

from math import prod

from lightning_jd.engines.tape.graph import VIEWS, Graph, may_be_hooked
from lightning_jd.engines.tape.plan import Plan
from lightning_jd.engines.tape.rules import rule_at

#: What may be kept, as a share of parameters and of the results of all operations.
_SHARE = 0.3


def can_free(graph: Graph, plan: Plan) -> bool:
    """Whether the graph can be freed during the Gramian pass."""
    if plan.computed or plan.by_rows:
        return False  # computations on parameters, and rows, are differentiated after the pass
    for position, use in enumerate(plan.uses):
        if plan.refused.get(position, True):
            return False  # unknown, or the operation is run once more after the pass
        node, slot = graph.nodes[use.node], use.slots[0]
        if any(may_be_hooked(node, name) for name in rule_at(node.name(), slot).saved):
            return False  # what is recomputed is given out once per pass
    return True


def is_light(plan: Plan) -> bool:
    """Whether one pass that frees the graph takes less memory than two of which the last does.

    The first of two passes has to leave all activations in place. One pass alone has to keep the
    gradients at the output of every operation with parameters, or the rows of these parameters;
    for images these are few, for long sequences many.

    Args:
        plan: The plan; all uses must have a rule.
    """
    kept = sum(_numbers(plan, position) for position in range(len(plan.uses)))
    numbers = sum(
        prod(shape)
        for record in plan.records
        if record.name not in VIEWS
        for shape in record.shapes
    )
    return kept <= _SHARE * numbers


def _numbers(plan: Plan, position: int) -> int:
    """How many numbers are kept for the gradients of a use: the rows, or what comes to it."""
    use, arrangement = plan.uses[position], plan.arrangements[position]
    assert arrangement is not None
    rows = arrangement.m * sum(placement.size for placement in use.placements)
    return min(rows, prod(plan.records[use.node].shapes[0]))

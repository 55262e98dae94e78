"""What a step would take, found out without a pass: for those who must agree before one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from torch import Tensor
from typing_extensions import override

from lightning_jd.engines._hooks import hook_history
from lightning_jd.engines._objectives import Objectives
from lightning_jd.engines._parameters import NamedParameters
from lightning_jd.engines.tape.graph import may_be_hooked
from lightning_jd.engines.tape.owners import Crossed, Evidence, Owners
from lightning_jd.engines.tape.plan import known_graph, standing_of
from lightning_jd.engines.tape.rules import rule_of, saved_names_of
from lightning_jd.engines.tape.run import Request, experience_of


class Foresight(NamedTuple):
    """Whether rules give the rows of all instances in one pass (one per task, for a matrix).

    Attributes:
        obstacle: Why not, or nothing.
        kind: The same for graphs with the same number of hooks that differ in sizes only.
    """

    obstacle: str = ""
    kind: Hashable = None


def foresee(objectives: Objectives, named: NamedParameters, scale: float | Tensor) -> Foresight:
    """Look at a graph, and run nothing of it.

    Args:
        objectives: The losses, those of instances.
        named: The parameters.
        scale: What the losses are multiplied by before they are differentiated.

    Example:
        >>> import torch
        >>> layer, norm = torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)
        >>> losses = Objectives.of(norm(layer(torch.randn(4, 3))).square().sum(dim=1))
        >>> foresee(losses, list(layer.named_parameters()), 1.0).obstacle
        'NativeBatchNormBackward0 may mix instances'
    """
    request = Request(objectives, named, scale, "fast", "off", 1, retain_graph=True)
    if request.instances is None:
        return Foresight("there is one row only")
    graph, known = known_graph(objectives.outputs, request.tensors)
    evidence = _Unasked(graph, request.owners)
    try:
        hooks = hook_history.count(graph.nodes)
        standing = standing_of(known, graph, evidence.m, request.model, is_hooked=hooks > 0)
        plan = known.plan(evidence, standing.demoted)
    except _Asked as question:
        return Foresight(f"{graph.nodes[question.node].name()} may mix instances")
    if plan.by_rows:
        return Foresight(f"{next(iter(plan.culprits.values()), 'an operation')} mixes instances")
    if plan.computed:
        return Foresight("parameters are computed with before they are used")
    refused = experience_of(plan).refused
    for position, use in enumerate(plan.uses):
        node, slot = graph.nodes[use.node], use.slots[0]
        has_rule = rule_of(node.name(), slot) is not None
        if not has_rule or plan.arrangements[position] is None or refused.get(position):
            return Foresight(f"there is no rule for {node.name()}")
        if any(may_be_hooked(node, name) for name in saved_names_of(node.name(), slot)):
            return Foresight("activations are computed again in the backward pass")
    return Foresight("", (plan.kind, hooks))


class _Asked(Exception):  # noqa: N818  # it ends a search, and is no error
    """An operation would have to be run to find out what it does."""

    def __init__(self, node: int) -> None:
        super().__init__()
        self.node = node


class _Unasked(Evidence):
    """Evidence of which nothing may be found by experiment."""

    @override
    def below(self, node: int, at: Crossed) -> Sequence[Owners | None] | None:
        raise _Asked(node)

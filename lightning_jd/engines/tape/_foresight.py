"""What a step would take, found out without a pass: for those who must agree before one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor
from typing_extensions import override

from lightning_jd.engines._hooks import hook_history
from lightning_jd.engines._objectives import Objectives
from lightning_jd.engines._parameters import NamedParameters
from lightning_jd.engines.tape.graph import is_hooked, walk
from lightning_jd.engines.tape.owners import Crossed, Evidence, Owners
from lightning_jd.engines.tape.plan import Certificates, memory
from lightning_jd.engines.tape.rules import rule_at
from lightning_jd.engines.tape.run import Request, TapeOptions


class Foresight(NamedTuple):
    """Whether rules give the rows of all instances in one pass (one per task, for a matrix).

    Attributes:
        obstacle: Why not, or nothing.
        certificates: Those of graphs with as many hooks that differ in sizes only.
    """

    obstacle: str = ""
    certificates: Certificates | None = None


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
    request = Request(objectives, named, scale, TapeOptions(check="off"), retain_graph=True)
    if request.instances is None:
        return Foresight("there is one row only")
    graph = walk(objectives.outputs, request.tensors)
    known = memory.known(graph, request.types)
    hooks = hook_history.count(graph.nodes)
    certificates = memory.certificates(known, ("sharded", hooks))
    if certificates.row_by_row:
        return Foresight("a certificate has failed")
    try:
        plan = known.plan(graph, request.owners, evidence=_Unasked)
    except _Asked as question:
        return Foresight(f"{graph.nodes[question.node].name()} may mix instances")
    if plan.by_rows:
        return Foresight(f"{next(iter(plan.lost_at.values()), 'an operation')} mixes instances")
    if plan.computed:
        return Foresight("parameters are computed with before they are used")
    for position, use in enumerate(plan.uses):
        node, slot = graph.nodes[use.node], use.slots[0]
        rule = rule_at(node.name(), slot)
        if (
            rule.function is None
            or plan.arrangements[position] is None
            or plan.refused.get(position)
        ):
            return Foresight(f"there is no rule for {node.name()}")
        if any(is_hooked(node, name) for name in rule.saved):
            return Foresight("activations are computed again in the backward pass")
    return Foresight("", certificates)


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

"""Whether one pass is enough, found out without a pass: FSDP2 must agree on that before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor
from typing_extensions import override

from lightning_jd.engines._hooks import hook_history
from lightning_jd.engines._objectives import Objectives
from lightning_jd.engines._parameters import NamedParameters
from lightning_jd.engines.tape.graph import may_be_hooked, walk
from lightning_jd.engines.tape.owners import Crossed, Evidence, Owners
from lightning_jd.engines.tape.plan import Certificates, memory
from lightning_jd.engines.tape.rules import rule_at
from lightning_jd.engines.tape.run import Request, TapeOptions


class OnePass(NamedTuple):
    """Whether rules give the rows of all instances in one pass (one per task, for a matrix).

    Attributes:
        obstacle: Why not, or nothing.
        certificates: Those of graphs with as many hooks that differ in sizes only.
    """

    obstacle: str = ""
    certificates: Certificates | None = None


def one_pass_of(objectives: Objectives, named: NamedParameters, scale: float | Tensor) -> OnePass:
    """Plan for a graph, and run nothing of it.

    Args:
        objectives: The losses, those of instances.
        named: The parameters.
        scale: What the losses are multiplied by before they are differentiated.

    Example:
        >>> import torch
        >>> layer, norm = torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)
        >>> losses = Objectives.of(norm(layer(torch.randn(4, 3))).square().sum(dim=1))
        >>> one_pass_of(losses, list(layer.named_parameters()), 1.0).obstacle
        'NativeBatchNormBackward0 may mix instances'
    """
    request = Request(objectives, named, scale, TapeOptions(check="off"), retain_graph=True)
    if request.instances is None:
        return OnePass("there is one row only")
    graph = walk(objectives, request.tensors)
    known = memory.known(graph, request.types)
    hooks = hook_history.count(graph.nodes)
    certificates = memory.certificates(known, ("sharded", hooks))
    if certificates.row_by_row:
        return OnePass("a certificate has failed")
    try:
        plan = known.plan(graph, request.owners, evidence=_NoProbe)
    except _NeedsProbe as needed:
        return OnePass(f"{graph.nodes[needed.node].name()} may mix instances")
    if plan.by_rows:
        return OnePass(f"{next(iter(plan.lost_at.values()), 'an operation')} mixes instances")
    if plan.computed:
        return OnePass("parameters are computed with before they are used")
    for position, use in enumerate(plan.uses):
        node, slot = graph.nodes[use.node], use.slots[0]
        rule = rule_at(node.name(), slot)
        if (
            rule.function is None
            or plan.arrangements[position] is None
            or plan.refused.get(position)
        ):
            return OnePass(f"there is no rule for {node.name()}")
        if any(may_be_hooked(node, name) for name in rule.saved):
            return OnePass("activations are computed again in the backward pass")
    return OnePass("", certificates)


class _NeedsProbe(Exception):  # noqa: N818  # it ends a search, and is no error
    """An operation would have to be probed."""

    def __init__(self, node: int) -> None:
        super().__init__()
        self.node = node


class _NoProbe(Evidence):
    """Evidence without probes."""

    @override
    def below(self, node: int, at: Crossed) -> Sequence[Owners | None] | None:
        raise _NeedsProbe(node)

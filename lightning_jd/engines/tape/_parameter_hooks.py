"""Finds hooks between a parameter and the operation that consumes it, as on ``weight.t()``.

A rule takes a gradient at the operation and places it in the parameter. A hook in between sees the
gradient of one row; in the gradient of a random combination, rows may cancel, so that a clip shows
nothing. So autograd pulls random gradients of the size of a row back from the operation: that takes
a few copies, and no pass through the model.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from lightning_jd.engines._graph import LEAF
from lightning_jd.engines._hooks import hooks_silenced
from lightning_jd.engines._parameters import to_columns
from lightning_jd.engines.tape._compare import Component, Mismatch
from lightning_jd.engines.tape.graph import Graph
from lightning_jd.engines.tape.plan import Plan

#: Sizes of gradients, relative to the longest row: clips show in large ones, shifts in small ones.
_SIZES = 1.0, 1 / 64
#: What is rounding, in units of the machine precision.
_ROUNDING = 8.0


def altered_placements(
    graph: Graph,
    plan: Plan,
    tensors: Sequence[Tensor],
    shares: Sequence[Component],
    scale: float | Tensor,
    plain: Collection[int],
) -> list[Mismatch]:
    """Parameters whose gradients are not only placed on the way from their operations.

    Args:
        graph: The graph.
        plan: The plan for it.
        tensors: The parameters.
        shares: The share of each contribution in the Gramian, which tells how long rows are.
        scale: What the losses are multiplied by.
        plain: Parameters whose rows come from autograd itself.
    """
    found: dict[int, Mismatch] = {}
    lengths: dict[int, float] = {}
    for parameters, share in shares:
        longest = float(share.diagonal().max().clamp(min=0).sqrt()) * float(scale)
        for parameter in parameters:
            lengths[parameter] = lengths.get(parameter, 0.0) + longest
    for use in plan.uses:
        for slot, placement in zip(use.slots, use.placements, strict=True):
            parameter = placement.parameter
            node, output = graph.nodes[use.node].next_functions[slot]
            if parameter < 0 or parameter in plain or node is None or node.name() == LEAF:
                continue
            described = node._input_metadata[output]
            if described.dtype.is_complex or not lengths.get(parameter):
                continue
            eps = max(torch.finfo(t).eps for t in (described.dtype, tensors[parameter].dtype))
            errors: list[Tensor] = []
            for size in _SIZES:
                arriving = torch.randn(placement.shape, generator=torch.Generator().manual_seed(0))
                arriving = arriving.to(described.device) * (size * lengths[parameter])
                arriving = arriving.to(described.dtype)
                with hooks_silenced([tensors[parameter]]):
                    (leaving,) = torch.autograd.grad(
                        GradientEdge(node, output), tensors[parameter], arriving, retain_graph=True
                    )
                expected = placement.placed(arriving[None])[0].to(leaving.dtype)
                errors.append((to_columns(leaving).reshape(-1) - expected) / expected.norm())
            slack = _ROUNDING * eps
            if not max(error.norm() for error in errors) <= slack:
                what = "gradient" if (errors[0] - errors[1]).norm() <= slack else "linearity"
                relative = max(float(error.norm()) for error in errors)
                found[parameter] = Mismatch((parameter,), what, relative)
    return list(found.values())

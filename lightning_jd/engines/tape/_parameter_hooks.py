"""Finds hooks that rules pass by: on operations with parameters, and between the two.

A rule takes a gradient at the output of an operation and places the result in the parameter. Hooks
of the node itself run after that, or not at all: whether there are some can be seen. A hook of a
tensor in between, as of ``weight.t()``, sees the gradient of one row; in that of a random
combination, rows may cancel, so that a clip shows nothing. So autograd pulls random gradients of
the size of a row back from the operation: that takes next to no time, as long as they arrive in the
memory in which they left.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf, prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from lightning_jd.engines._graph import LEAF
from lightning_jd.engines._hooks import holds_hook, hooks_silenced
from lightning_jd.engines._parameters import to_columns
from lightning_jd.engines.tape._compare import Component, Mismatch
from lightning_jd.engines.tape.graph import Graph, Placement, Shape
from lightning_jd.engines.tape.plan import Plan

#: Sizes of entries, relative to the longest row: clips show in large ones, shifts in small ones.
_SIZES = 1.0, 1 / 64
#: What is rounding of an entry, in units of the machine precision.
_ROUNDING = 8.0
#: Random numbers that a gradient repeats: to draw as many as a weight has takes as long as a pass.
_DRAWN = 1 << 12


def hooked_operations(graph: Graph, plan: Plan) -> frozenset[int]:
    """Parameters of operations whose nodes have hooks."""
    hooked = {node for node in plan.by_node if holds_hook(graph.nodes[node])}
    found = {p for use in plan.uses if use.node in hooked for p in use.parameters}
    return frozenset(found if min(found, default=0) >= 0 else found | plan.computed)


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
            sent = _random(placement.shape, lengths[parameter], described)
            error = _error(GradientEdge(node, output), tensors[parameter], placement, sent)
            if not error <= _ROUNDING * eps:
                found[parameter] = Mismatch((parameter,), "gradient", error)
    return list(found.values())


def _random(shape: Shape, size: float, like: Any) -> Tensor:
    """A gradient that repeats a few random numbers, of the type and on the device of another."""
    n = prod(shape)
    drawn = torch.randn(2, _DRAWN, generator=torch.Generator().manual_seed(0))
    drawn *= size * torch.tensor(_SIZES).unsqueeze(1)
    numbers = drawn.T.reshape(-1).to(like.device, like.dtype)
    return numbers.repeat(-(-n // len(numbers)))[:n].view(shape)


def _error(edge: GradientEdge, parameter: Tensor, placement: Placement, sent: Tensor) -> float:
    """How far off an entry of the parameter's gradient is, relative to itself.

    Args:
        edge: What the operation consumes.
        parameter: The parameter.
        placement: Where the entries of one are in the other.
        sent: The gradient that arrives at the edge.
    """
    version = sent._version
    with hooks_silenced([parameter]):
        (found,) = torch.autograd.grad(edge, parameter, sent, retain_graph=True)
    if sent._version != version:
        return inf  # a hook has written to it
    if placement.where is None:
        same = sent.T if placement.transposed else sent.view(found.shape)
        if found.data_ptr() == same.data_ptr() and found.stride() == same.stride():
            return 0.0
    expected = placement.placed(sent[None])[0].to(found.dtype)
    off = (to_columns(found).reshape(-1) - expected).abs()
    return float(torch.where(off == 0, off, off / expected.abs()).max())

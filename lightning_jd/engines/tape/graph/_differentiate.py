"""Calls autograd: for a whole graph with weighted losses, or for one operation alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node

from lightning_jd.engines._hooks import hooks_silenced
from lightning_jd.engines._objectives import Output

_engine: Any = torch.autograd.Variable._execution_engine


def gradients_of(
    outputs: Sequence[Output],
    weights: Sequence[Tensor | None],
    targets: Sequence[Tensor | GradientEdge],
    *,
    retain_graph: bool = True,
) -> tuple[Tensor | None, ...]:
    """The gradient of the weighted sum of some outputs.

    Autograd's engine is called as ``torch.autograd.grad`` calls it, after checks that are made here
    by construction: these cost as much as a small layer, and import torch's machinery for symbolic
    shapes, which takes a second and 45 MB.

    Args:
        outputs: What to differentiate; those without a graph are left out.
        weights: One per output, of its shape and type; ``None`` is one everywhere, for tensors.
        targets: Parameters, whose hooks are silenced, or outputs of nodes.
        retain_graph: Whether the graph is kept.
    """
    with hooks_silenced([target for target in targets if isinstance(target, Tensor)]):
        return run_engine(outputs, weights, targets, retain_graph=retain_graph)


def run_engine(
    outputs: Sequence[Output],
    weights: Sequence[Tensor | None],
    targets: Sequence[Tensor | GradientEdge],
    *,
    retain_graph: bool = True,
) -> tuple[Tensor | None, ...]:
    """:func:`gradients_of` for those who have silenced the hooks of parameters themselves."""
    pairs = [
        (output, torch.ones_like(output) if weight is None else weight.to(output.dtype))
        if isinstance(output, Tensor)
        else (output, weight)
        for output, weight in zip(outputs, weights, strict=True)
        if isinstance(output, GradientEdge) or output.requires_grad
    ]
    found: tuple[Tensor | None, ...] = _engine.run_backward(
        tuple([output for output, _ in pairs]),
        tuple([weight for _, weight in pairs]),
        retain_graph,
        False,  # no graph of the gradients
        tuple(targets),
        True,  # targets may be unreachable
        accumulate_grad=False,
    )
    return found


def local_vjp(node: Node, cotangents: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """The gradient at every input of one operation, for given gradients at its outputs.

    The operation is differentiated alone: nothing below it runs.

    Returns:
        One gradient per entry of ``node.next_functions``.
    """
    if isinstance(node, BackwardCFunction):
        return _custom_vjp(node, cotangents)
    call: Any = node  # typed as if it could not be called
    found = call(*cotangents)
    return found if isinstance(found, tuple) else (found,)


def _custom_vjp(node: Any, cotangents: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """:func:`local_vjp` of a ``torch.autograd.Function``, called as autograd calls it.

    Outputs that are not used have a gradient of zeros. There is one result per *argument* of the
    function, but one edge per *tensor* among them; those that need a gradient come in the same
    order in both.
    """
    metadata = node._input_metadata
    defined = [
        torch.zeros(described.shape, dtype=described.dtype, device=described.device)
        if cotangent is None
        else cotangent
        for cotangent, described in zip(cotangents, metadata, strict=True)
    ]
    found = node.apply(*defined)
    results = found if isinstance(found, tuple) else (found,)
    needed = iter(
        [result for result, needs in zip(results, node.needs_input_grad, strict=True) if needs]
    )
    return tuple([None if child is None else next(needed) for child, _ in node.next_functions])

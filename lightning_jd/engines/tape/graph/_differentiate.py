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


def gradients_of(
    outputs: Sequence[Output],
    weights: Sequence[Tensor],
    targets: Sequence[Tensor | GradientEdge],
    *,
    retain_graph: bool = True,
) -> tuple[Tensor | None, ...]:
    """The gradient of the weighted sum of some outputs.

    The sum is formed first: asked for ``grad_outputs``, ``torch.autograd`` imports its machinery
    for symbolic shapes, which takes a second and 45 MB. Places in the graph leave no choice.

    Args:
        outputs: What to differentiate.
        weights: One per output, of its shape.
        targets: Parameters, whose hooks are silenced, or outputs of nodes.
        retain_graph: Whether the graph is kept.
    """
    pairs = list(zip(outputs, weights, strict=True))
    places = {output: weight for output, weight in pairs if isinstance(output, GradientEdge)}
    with torch.enable_grad():
        parts = [
            (output * weight).sum()
            for output, weight in pairs
            if isinstance(output, Tensor) and output.requires_grad
        ]
        totals = parts if len(parts) < 2 else [torch.stack(parts).sum()]
    with hooks_silenced(target for target in targets if isinstance(target, Tensor)):
        return torch.autograd.grad(
            [*totals, *places],  # type: ignore[arg-type]  # tensors and edges may be mixed
            targets,  # type: ignore[arg-type]
            [*[None] * len(totals), *places.values()] if places else None,
            retain_graph=retain_graph,
            allow_unused=True,
        )


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

"""Calls autograd with weighted losses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from lightning_jd.engines._hooks import hooks_silenced


def gradients_of(
    outputs: Sequence[Tensor],
    weights: Sequence[Tensor],
    targets: Sequence[Tensor | GradientEdge],
    *,
    retain_graph: bool = True,
) -> tuple[Tensor | None, ...]:
    """The gradient of the weighted sum of some outputs.

    The sum is formed first: asked for ``grad_outputs``, ``torch.autograd`` imports its machinery
    for symbolic shapes, which takes a second and 45 MB.

    Args:
        outputs: What to differentiate.
        weights: One per output, of its shape.
        targets: Parameters, whose hooks are silenced, or outputs of nodes.
        retain_graph: Whether the graph is kept.
    """
    with torch.enable_grad():
        parts = [
            (output * weight).sum()
            for output, weight in zip(outputs, weights, strict=True)
            if output.requires_grad
        ]
        total = parts[0] if len(parts) == 1 else torch.stack(parts).sum()
    with hooks_silenced(target for target in targets if isinstance(target, Tensor)):
        return torch.autograd.grad(
            total,
            targets,  # type: ignore[arg-type]  # parameters and edges may be mixed
            retain_graph=retain_graph,
            allow_unused=True,
        )

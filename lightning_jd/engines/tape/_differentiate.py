"""Calls autograd with weighted losses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

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

"""The terms of a sum that depend on parameters only, as one term."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_jd.engines._graph import Place, leaves_of, walked
from lightning_jd.engines._objectives import Term
from lightning_jd.engines.split._origin import depends_on_parameters_only
from lightning_jd.engines.split._values import value_at


class Penalties(NamedTuple):
    """Terms that depend on parameters only, together.

    Attributes:
        places: Where they were computed.
        surrogate: A scalar that has the gradient of their sum; its value means nothing.
        value: The value of their sum, if it is known.
    """

    places: list[Place]
    surrogate: Tensor
    value: Tensor | None


def merged_penalties(
    terms: Mapping[Place, Term], parameters: Collection[int], dtype: torch.dtype
) -> Penalties | None:
    """Weight decay by hand, over all layers, is one objective among the losses.

    Returns:
        ``None`` if there is nothing to merge: fewer than two such terms, no other term, or hooks
        on a parameter, which would run twice.

    Example:
        >>> layer = torch.nn.Linear(3, 4)
        >>> places = [(p.square().sum().grad_fn, 0) for p in layer.parameters()]
        >>> places.append((layer(torch.ones(2, 3)).sum().grad_fn, 0))
        >>> edges = [torch.autograd.graph.GradientEdge(*place) for place in places]
        >>> terms = {p: Term(e, torch.ones(())) for p, e in zip(places, edges, strict=True)}
        >>> len(merged_penalties(terms, (), torch.float32).places)
        2
    """
    places = [place for place in terms if depends_on_parameters_only(place, parameters)]
    if len(places) < 2 or len(places) == len(terms):
        return None
    leaves = [leaf for _, leaf in leaves_of(walked([node for node, _ in places]))]
    if any(leaf._backward_hooks for leaf in leaves):
        return None
    gradients = torch.autograd.grad(
        [terms[place].edge for place in places],
        leaves,
        [terms[place].factor for place in places],
        retain_graph=True,
    )
    with torch.enable_grad():
        parts = [(p * g).sum().to(dtype) for p, g in zip(leaves, gradients, strict=True)]
        surrogate = torch.stack(parts).sum()
    values = [value_at(place) for place in places]
    known = [
        value.reshape(()) * terms[place].factor.reshape(())
        for place, value in zip(places, values, strict=True)
        if value is not None
    ]
    value = torch.stack(known).sum() if len(known) == len(places) else None
    return Penalties(places, surrogate, value)

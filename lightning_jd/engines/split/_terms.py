"""The terms of a sum, found below additions, constant factors and sums over stacks."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from lightning_jd.engines._graph import Place
from lightning_jd.engines._objectives import Term
from lightning_jd.engines.split._operations import LOSSES, is_linear, is_stacked
from lightning_jd.engines.split._origin import starts_sum
from lightning_jd.engines.split._region import (
    inputs_of,
    is_scalar,
    ones_at,
    operation,
    pull_back,
    root_of,
)


def terms_of(loss: Tensor, parameters: Collection[int] = ()) -> dict[Place, Term]:
    """Split a scalar into the terms of its sum, each with its factor.

    A term that appears twice is one term. A leaf that the sum was begun with is none.

    Example:
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> a, b = x.prod(), x.exp().max()
        >>> [float(term.factor) for term in terms_of(a - b / 4 + sum([a, b])).values()]
        [2.0, 0.75]
    """
    root = root_of(loss)
    with torch.no_grad():
        found = pull_back(root, ones_at(loss), _enters)
    order = {place: i for i, place in enumerate(_in_order(root))}
    return {
        place: Term(GradientEdge(*place), found[place])
        for place in sorted(found, key=lambda place: order[place])
        if not starts_sum(place, parameters)
    }


def _enters(place: Place) -> bool:
    node, _ = place
    if not is_linear(node) or _is_smoothed(node):
        return False
    # Numbers side by side are followed only where they are single numbers that were put together.
    return all(is_scalar(child) or is_stacked(child) for child in inputs_of(node)) or (
        operation(node) in ("Stack", "Cat")
    )


def _is_smoothed(node: Node) -> bool:
    """Whether it is the sum inside of a cross entropy with label smoothing, which is one loss."""
    if operation(node) != "Add" or len(inputs_of(node)) != 2:
        return False
    below = [_chain(child, 3) for child in inputs_of(node)]
    return any(
        first[0] == "Mul"
        and first[1] in LOSSES
        and LOSSES[first[1]].picks_classes
        and second[:3] == ["Mul", "Div", "Sum"]
        for first, second in (below, below[::-1])
        if len(first) > 1
    )


def _chain(place: Place, length: int) -> list[str]:
    """The names of some operations, each the first input of the one before."""
    names: list[str] = []
    node: Node | None = place[0]
    while node is not None and len(names) < length:
        names.append(operation(node))
        inputs = inputs_of(node)
        node = inputs[0][0] if inputs else None
    return names


def _in_order(root: Place) -> list[Place]:
    """Places from left to right, as they are written in a sum."""
    found: dict[Place, None] = {}
    stack = [root]
    while stack:
        place = stack.pop()
        if place in found:
            continue
        found[place] = None
        if _enters(place):
            stack.extend(reversed(inputs_of(place[0])))
    return list(found)

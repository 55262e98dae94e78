"""The top of an autograd graph: what lies between a scalar and the parts that it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from lightning_jd.engines._graph import LEAF, Place, place_of, walked
from lightning_jd.engines._hooks import hook_history, hooks_silenced
from lightning_jd.engines.tape.graph import local_vjp
from lightning_jd.errors import GraphError

#: Units of rounding between the same operations in another order.
_ROUNDING = 16


def operation(node: Node) -> str:
    """The name of an operation without the word that autograd adds.

    Example:
        >>> operation(torch.ones(2, requires_grad=True).sum().grad_fn)
        'Sum'
    """
    return node.name().rpartition("::")[2].partition("Backward")[0]


def shape_at(place: Place) -> tuple[int, ...]:
    """The shape of what was computed there."""
    node, number = place
    if node.name() == LEAF:
        return tuple(node.variable.shape)  # type: ignore[attr-defined]
    return tuple(node._input_metadata[number].shape)


def dtype_at(place: Place) -> torch.dtype:
    """The type of what was computed there."""
    node, number = place
    if node.name() == LEAF:
        leaf: Tensor = node.variable  # type: ignore[attr-defined]
        return leaf.dtype
    dtype: torch.dtype = node._input_metadata[number].dtype
    return dtype


def is_scalar(place: Place) -> bool:
    """Whether it is one number, in whatever shape."""
    return prod(shape_at(place)) == 1


def inputs_of(node: Node) -> list[Place]:
    """The inputs of an operation that depend on something that requires a gradient."""
    return [(child, number) for child, number in node.next_functions if child is not None]


def root_of(loss: Tensor) -> Place:
    """Where a loss was computed."""
    return place_of(loss)


def pull_back(
    root: Place,
    gradient: Tensor,
    enters: Callable[[Place], bool],
) -> dict[Place, Tensor]:
    """The gradient of a scalar at the border of a region below it.

    Only the operations inside of the region run, one by one, so that what flows around the region
    does not count.

    Args:
        root: The scalar.
        gradient: What to begin with.
        enters: Whether the operation at a place belongs to the region; asked for each place that
            is an input of an operation of the region.

    Returns:
        Each place at the border to the gradient there.

    Raises:
        GraphError: If a hook inside of the region changes gradients.
    """
    region = _region(root, enters)
    found: dict[Place, Tensor] = {root: gradient}
    for node in walked([root[0]], within=region):
        outputs = len(node._input_metadata)
        arriving = [found.pop((node, number), None) for number in range(outputs)]
        leaving = local_vjp(node, _filled(node, arriving))
        for (child, number), g in zip(node.next_functions, leaving, strict=True):
            if child is not None and g is not None:
                place = (child, number)
                # as autograd does, where types or shapes are mixed
                g = g.to(dtype_at(place)).sum_to_size(shape_at(place))
                found[place] = g if place not in found else found[place] + g
    if region and hook_history.count(region):
        _compare_with_autograd(root, gradient, found)
    return found


def _compare_with_autograd(root: Place, gradient: Tensor, found: dict[Place, Tensor]) -> None:
    """Differentiate the region with its hooks; some places may be below others."""
    edges = [GradientEdge(*place) for place in found]
    leaves = [node.variable for node, _ in found if node.name() == LEAF]  # type: ignore[attr-defined]
    with hooks_silenced(leaves):
        expected = torch.autograd.grad(
            [GradientEdge(*root)], edges, [gradient], retain_graph=True, allow_unused=True
        )
        delivered = torch.autograd.grad(edges, edges, list(found.values()), retain_graph=True)
    for (node, _), right, ours in zip(found, expected, delivered, strict=True):
        slack = _ROUNDING * torch.finfo(ours.dtype).eps * ours.norm()
        if right is None or (slack.isfinite() and not (right - ours).norm() <= slack):
            raise GraphError(
                "A loss must have no hook that changes gradients between itself and the terms or "
                f"instances that it is split into, got one above {operation(node)}. Register it on "
                "what the loss is computed from, or return the losses themselves."
            )


def _region(root: Place, enters: Callable[[Place], bool]) -> set[Node]:
    region: set[Node] = set()
    stack = [root]
    while stack:
        place = stack.pop()
        if place[0] not in region and enters(place):
            region.add(place[0])
            stack.extend(inputs_of(place[0]))
    return region


def _filled(node: Node, gradients: list[Tensor | None]) -> list[Tensor | None]:
    """Zeros for unused outputs of an operation with several."""
    like = next(g for g in gradients if g is not None)
    if len(gradients) == 1:
        return gradients
    return [
        like.new_zeros(tuple(described.shape)) if g is None else g
        for g, described in zip(gradients, node._input_metadata, strict=True)
    ]


def saved_by(node: Node) -> Iterator[Tensor]:
    """The tensors that an operation keeps for its backward pass, as they are in the graph."""
    for name in dir(node):
        if name.startswith("_saved_") and "_sym_" not in name:
            kept: Any = getattr(node, name)
            if isinstance(kept, Tensor):
                yield kept


def tensor_at(place: Place, parent: Node) -> Tensor | None:
    """The tensor that was computed at a place, if the operation itself or its user has kept it."""
    node, number = place
    for keeper in (node, parent):
        for kept in saved_by(keeper):
            if kept.grad_fn is node and kept.output_nr == number:
                return kept
    return None


def ones_at(loss: Tensor) -> Tensor:
    """The gradient of a scalar with respect to itself."""
    return torch.ones_like(loss.detach())

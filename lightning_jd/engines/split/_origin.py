"""Where the slices of a tensor come from: the examples of a batch, or the rows of a parameter.

The axis that tells the slices apart is followed down the graph. The axis of examples ends in data,
which are no part of the graph. That of features, classes or units ends in a parameter, which has
one row or column for each of them: so a statistic over the batch, and a term that depends on
parameters only, are told from a loss without a look at sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd.graph import Node

from lightning_jd.engines._graph import LEAF, Place
from lightning_jd.engines.split._region import inputs_of, is_scalar, operation, shape_at
from lightning_jd.engines.tape.graph import READERS, signed
from lightning_jd.engines.tape.owners import Owners
from lightning_jd.engines.tape.owners.flow import Crossing, flow_of, is_elementwise, is_known
from lightning_jd.engines.tape.owners.flow._registry import Flowed

#: Look rows of a table up, by an index that is data.
_LOOKUPS = {"Index", "IndexSelect", "Gather"}


class Origin(NamedTuple):
    """What the slices of a tensor are.

    Attributes:
        parameter: The place of a parameter of which each slice has its own part; ``None`` if there
            is none.
        listed: An operation that has joined the slices one by one, as a list of steps in time is;
            ``None`` if there is none.
    """

    parameter: Place | None = None
    listed: Node | None = None


def origin_of(place: Place, owners: Owners, parameters: Collection[int] = ()) -> Origin:
    """Follow the slices of a tensor.

    Args:
        place: Where the tensor was computed.
        owners: The example that each slice belongs to.
        parameters: The ``id`` of each tensor that is a parameter without being a
            :class:`torch.nn.Parameter`. Other leaves are data that require a gradient.

    Example:
        >>> layer = torch.nn.Linear(3, 4)
        >>> out = layer(torch.ones(4, 3)).exp()
        >>> origin_of((out.grad_fn, 0), Owners(0, np.arange(4))).parameter is None
        True
        >>> out = layer.weight.exp()
        >>> origin_of((out.grad_fn, 0), Owners(0, np.arange(4))).parameter is None
        False
    """
    if (owners.ids == owners.ids[0]).all():
        return Origin()  # one example owns everything
    listed = None
    seen: set[tuple[Place, int]] = set()
    stack = [(place, owners)]
    while stack:
        here, owners = stack.pop()
        assert owners.axis is not None
        if (here, owners.axis) in seen:
            continue
        seen.add((here, owners.axis))
        node = here[0]
        if node.name() == LEAF:
            if is_parameter(node, parameters):
                return Origin(here, listed)
            continue
        for child, flow in _carriers(here, owners):
            if flow.axis is not None:
                stack.append((child, flow))
            else:
                listed = node
                if (leaf := _only_leaf(child)) and is_parameter(leaf[0], parameters):
                    return Origin(leaf, listed)
    return Origin(None, listed)


def starts_sum(place: Place, parameters: Collection[int]) -> bool:
    """Whether it is the number that a sum was begun with, a leaf that is no parameter.

    Example:
        >>> loss = torch.zeros((), requires_grad=True) + torch.ones((), requires_grad=True).exp()
        >>> [starts_sum(place, ()) for place in inputs_of(loss.grad_fn)]
        [True, False]
    """
    leaf = place[0]
    return leaf.name() == LEAF and is_scalar(place) and not is_parameter(leaf, parameters)


def depends_on_parameters_only(place: Place, parameters: Collection[int]) -> bool:
    """Whether no data are part of it, as of a penalty of the weights.

    Constants are no part of the graph. They count as data where an operation has a result of
    another shape than its inputs.

    Example:
        >>> layer = torch.nn.Linear(3, 4)
        >>> penalty, out = (0.1 * layer.weight).square().sum(), layer(torch.ones(2, 3)).sum()
        >>> [depends_on_parameters_only((each.grad_fn, 0), ()) for each in (penalty, out)]
        [True, False]
    """
    seen: set[Place] = set()
    stack = [place]
    while stack:
        here = stack.pop()
        node = here[0]
        if node.name() == LEAF:
            if not is_parameter(node, parameters):
                return False
            continue
        inputs = inputs_of(node)
        if len(inputs) < len(node.next_functions):
            same = all(shape_at(child) == shape_at(here) for child in inputs)
            if not (is_elementwise(node.name()) and same):
                return False
        new = [child for child in inputs if child not in seen]
        seen.update(new)
        stack += new
    return True


def is_parameter(leaf: Node, parameters: Collection[int]) -> bool:
    """Whether a leaf of the graph is a parameter, see :func:`origin_of`."""
    variable = leaf.variable  # type: ignore[attr-defined]
    return isinstance(variable, torch.nn.Parameter) or id(variable) in parameters


def flows_into(place: Place, owners: Owners) -> list[tuple[Place, Flowed]]:
    """What is proven of the inputs of an operation that require a gradient."""
    node, output = place
    name = node.name()
    children = [None if child is None else (child, k) for child, k in node.next_functions]
    if _is_nested(node) or any(child is not None and _is_nested(child[0]) for child in children):
        return [(child, None) for child in children if child is not None]  # sizes are data
    shapes = [shape_at((node, k)) for k in range(len(node._input_metadata))]
    inputs = [None if child is None else shape_at(child) for child in children]
    flowed: Sequence[Flowed]
    if is_elementwise(name) and all(shape in (None, shapes[0]) for shape in inputs):
        flowed = [owners] * len(inputs)
    else:
        facts: Any = signed(READERS[name](node)) if name in READERS else ()
        several: list[Owners | None] = [None] * len(shapes)
        several[output] = owners
        known = facts if isinstance(facts, tuple) else ()
        flowed = flow_of(name, Crossing(several, shapes, inputs, known))
    return [(child, flow) for child, flow in zip(children, flowed, strict=True) if child]


def _carriers(place: Place, owners: Owners) -> list[tuple[Place, Owners]]:
    """The inputs that have the axis, too, with the owners of their slices."""
    if _is_nested(place[0]):
        return []
    found = []
    for child, flow in flows_into(place, owners):
        if flow is None:  # it mixes slices, or is not known: the axis stays where it is
            flow = _same_axis(place, child, owners)
        if isinstance(flow, Owners):
            found.append((child, flow))
    return found


def _same_axis(place: Place, child: Place, owners: Owners) -> Owners | None:
    """The axis of an input that stands for the axis of the output, as far as sizes tell."""
    node, axis = place[0], owners.axis
    assert axis is not None
    if _is_nested(child[0]) or (operation(node) in _LOOKUPS and _only_leaf(child) is not None):
        return None
    output, shape = shape_at(place), shape_at(child)
    if shape == output:
        return owners
    if len(inputs_of(node)) > 1 and not is_known(node.name()):
        return None
    if len(shape) != len(output):
        axis = min(axis, len(shape) - 1)
    if not shape or shape[axis] == 1:
        return None
    same = shape[axis] == len(owners.ids)
    return owners.moved(axis) if same else Owners(axis, np.arange(shape[axis]))


def _only_leaf(place: Place) -> Place | None:
    """The leaf that a place is a function of, where there is nothing else that it depends on."""
    while place[0].name() != LEAF:
        if len(place[0].next_functions) != 1 or len(inputs_of(place[0])) != 1:
            return None
        (place,) = inputs_of(place[0])
    return place


def _is_nested(node: Node) -> bool:
    return any(described.is_nested_tensor for described in node._input_metadata)

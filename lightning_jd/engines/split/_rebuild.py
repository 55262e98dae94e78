"""The result of a layer, computed again where the graph has not kept it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lightning_jd.engines._graph import LEAF, Place
from lightning_jd.engines.split._operations import RESHAPED
from lightning_jd.engines.split._region import inputs_of, operation, shape_at


def rebuilt(place: Place) -> Tensor | None:
    """The result of a linear layer, in any shape, with the graph below it.

    A loss like ``critic(x).mean()`` needs the outputs of its last layer, and nobody else has kept
    them; the layer has kept its inputs. ``None`` if it is another operation.

    Example:
        >>> layer = torch.nn.Linear(3, 1)
        >>> outputs = layer(torch.ones(2, 3)).squeeze(1)
        >>> bool((rebuilt((outputs.grad_fn, 0)) == outputs).all())
        True
    """
    node: Any = place[0]
    name = operation(node)
    with torch.enable_grad():
        if name in RESHAPED and len(inputs_of(node)) == 1:
            below = rebuilt(inputs_of(node)[0])
            return None if below is None else below.reshape(shape_at(place))
        if name == "Mm":
            left, right = node._saved_self, _weight(node._saved_mat2, node, 1)
            return None if left is None or right is None else left @ right
        if name == "Addmm" and node._saved_alpha == node._saved_beta == 1:
            left, right = node._saved_mat1, _weight(node._saved_mat2, node, 2)
            bias = node.next_functions[0][0]
            if left is None or right is None or bias is None or bias.name() != LEAF:
                return None
            return torch.addmm(bias.variable, left, right)
    return None


def _weight(kept: Tensor | None, node: Any, slot: int) -> Tensor | None:
    """The transposed weight, which is not kept in the first layer of a model."""
    child = node.next_functions[slot][0]
    if kept is not None or child is None or operation(child) != "T":
        return kept
    leaf = child.next_functions[0][0]
    return leaf.variable.t() if leaf is not None and leaf.name() == LEAF else None

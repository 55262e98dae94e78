"""The values of the terms of a sum, as far as what their operations have kept tells them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import Node

from lightning_jd.engines.split._region import LEAF, Place, operation, shape_at, signed

_REDUCTION = ("none", "mean", "sum")
_Rule = Callable[[Any], Tensor]
#: An operation to its result, computed again from what it has kept.
_AGAIN: dict[str, _Rule] = {
    "NllLoss": lambda n: F.nll_loss(
        n._saved_self,
        n._saved_target,
        n._saved_weight,
        ignore_index=signed(n._saved_ignore_index),
        reduction=_reduction(n),
    ),
    "MseLoss": lambda n: F.mse_loss(n._saved_self, n._saved_target, reduction=_reduction(n)),
    "SmoothL1Loss": lambda n: F.smooth_l1_loss(
        n._saved_self, n._saved_target, beta=n._saved_beta, reduction=_reduction(n)
    ),
    "HuberLoss": lambda n: F.huber_loss(
        n._saved_self, n._saved_target, delta=n._saved_delta, reduction=_reduction(n)
    ),
    "BinaryCrossEntropy": lambda n: F.binary_cross_entropy(
        n._saved_self, n._saved_target, n._saved_weight, reduction=_reduction(n)
    ),
    "BinaryCrossEntropyWithLogits": lambda n: F.binary_cross_entropy_with_logits(
        n._saved_self,
        n._saved_target,
        n._saved_weight,
        pos_weight=n._saved_pos_weight,
        reduction=_reduction(n),
    ),
    "Abs": lambda n: n._saved_self.abs(),
    "Pow": lambda n: n._saved_self**n._saved_exponent,
    "Log": lambda n: n._saved_self.log(),
    "Log1P": lambda n: n._saved_self.log1p(),
    "Softplus": lambda n: F.softplus(n._saved_self, n._saved_beta, n._saved_threshold),
}
_AGAIN["NllLoss2D"] = _AGAIN["NllLoss"]
#: Operations that take a part of their input.
_CHOSEN: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "Select": lambda n, x: x.select(signed(n._saved_dim), signed(n._saved_index)),
    "Gather": lambda n, x: x.gather(signed(n._saved_dim), n._saved_index),
    "MaskedSelect": lambda n, x: x[n._saved_mask],
    "Index": lambda n, x: x[tuple(slice(None) if i is None else i for i in n._saved_indices)],
}
#: The same numbers in another shape.
_RESHAPED = {"View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Expand"}


def value_at(place: Place) -> Tensor | None:
    """What was computed at a place; ``None`` if that is not known."""
    with torch.no_grad():
        try:
            return _value(place)
        except (AttributeError, RuntimeError, ValueError):  # another version of torch
            return None


def _value(place: Place) -> Tensor | None:
    node, number = place
    if node.name() == LEAF:
        leaf: Tensor = node.variable  # type: ignore[attr-defined]
        return leaf.detach()
    name = operation(node)
    result = getattr(node, "_saved_result", None)
    if isinstance(result, Tensor) and result.output_nr == number:
        return result.detach()
    if name in _AGAIN:
        return _AGAIN[name](node).detach()
    inputs = [None if child is None else _value((child, k)) for child, k in node.next_functions]
    if name in ("Mean", "Sum") and inputs[0] is not None:
        reduce = torch.mean if name == "Mean" else torch.sum
        dims = getattr(node, "_saved_dim", None)
        if not dims:
            return reduce(inputs[0])
        return reduce(inputs[0], dim=[signed(d) for d in dims], keepdim=bool(node._saved_keepdim))  # type: ignore[attr-defined]
    if name in ("Mul", "Div"):
        return _product(node, inputs)
    if name in _CHOSEN and inputs[0] is not None:
        return _CHOSEN[name](node, inputs[0])
    if name in _RESHAPED and inputs[0] is not None:
        return (
            inputs[0].expand(shape_at(place))
            if name == "Expand"
            else inputs[0].reshape(shape_at(place))
        )
    if name == "Neg" and inputs[0] is not None:
        return -inputs[0]
    if name in ("ToCopy", "Clone") and inputs[0] is not None:
        return inputs[0]
    if name in ("Add", "Sub") and len(inputs) == 2 and None not in inputs:
        first, second = inputs
        assert first is not None
        assert second is not None
        alpha = node._saved_alpha if name == "Add" else -node._saved_alpha  # type: ignore[attr-defined]
        return torch.add(first, second, alpha=alpha)
    return None


def _product(node: Node, inputs: list[Tensor | None]) -> Tensor | None:
    first = inputs[0]
    second = inputs[1] if len(inputs) > 1 else None
    first = getattr(node, "_saved_self", None) if first is None else first
    second = getattr(node, "_saved_other", None) if second is None else second
    if first is None or second is None:
        return None
    return first * second if operation(node) == "Mul" else first / second


def _reduction(node: Any) -> str:
    return _REDUCTION[node._saved_reduction]

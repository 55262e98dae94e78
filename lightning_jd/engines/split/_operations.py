"""The operations that a scalar loss may end with, each known in one table.

To teach the split a loss of ``torch.nn.functional``, add a line to :data:`LOSSES`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import Node

from lightning_jd.engines._graph import LEAF, Place
from lightning_jd.engines.split._region import inputs_of, is_scalar, operation, shape_at
from lightning_jd.engines.tape.graph import RESHAPES, signed
from lightning_jd.engines.tape.owners.flow import is_elementwise


class LossOperation(NamedTuple):
    """A loss of torch that reduces by itself, over entries or examples.

    Attributes:
        value: The loss, computed again from what the node has kept; ``None`` if it cannot be.
        picks_classes: Whether it has one entry per example and position, of several classes, and
            its mean is weighted by class.
    """

    value: Callable[..., Tensor] | None = None
    picks_classes: bool = False


def _loss(function: Callable[..., Tensor], *names: str, **options: str) -> LossOperation:
    """A loss of an input and a target, and of what else a node has kept, by name."""

    def value(node: Any) -> Tensor:
        kept = {key: signed(getattr(node, "_saved_" + name)) for key, name in options.items()}
        further = [getattr(node, "_saved_" + name) for name in names]
        reduction = ("none", "mean", "sum")[node._saved_reduction]
        return function(node._saved_self, node._saved_target, *further, reduction=reduction, **kept)

    return LossOperation(value)


_NLL = _loss(F.nll_loss, "weight", ignore_index="ignore_index")._replace(picks_classes=True)
_BCE = F.binary_cross_entropy_with_logits
LOSSES: dict[str, LossOperation] = {
    "NllLoss": _NLL,
    "NllLoss2D": _NLL,
    "MseLoss": _loss(F.mse_loss),
    "SmoothL1Loss": _loss(F.smooth_l1_loss, beta="beta"),
    "HuberLoss": _loss(F.huber_loss, delta="delta"),
    "BinaryCrossEntropy": _loss(F.binary_cross_entropy, "weight"),
    "BinaryCrossEntropyWithLogits": _loss(_BCE, "weight", pos_weight="pos_weight"),
    "SoftMarginLoss": LossOperation(),
    "MultiMarginLoss": LossOperation(),
}
REDUCTIONS = {"Sum", "Mean"}
#: Linear in all of their inputs together.
_SUMS = {"Add", "Sub", "Rsub", "Neg", "Stack", "Cat"} | REDUCTIONS
#: Linear where only one of their inputs is not a constant; a divisor must be the constant.
#: A choice between numbers is linear, too, if one of them is a constant.
_PRODUCTS = {"Mul", "Div", "Dot", "Mv", "Where", "NanToNum"}
#: The same numbers in another shape.
RESHAPED = {name.partition("Backward")[0] for name in RESHAPES}
#: The same numbers in another shape or type, or some of them.
COPIES = {"ToCopy", "Clone", "Expand", "Unbind"} | RESHAPED
#: Choose entries of their input.
CHOICES = {"Index", "MaskedSelect", "Gather", "IndexSelect", "Slice"}


def acts_by_entry(node: Node) -> bool:
    """Whether each number of the result depends on the number at the same position only."""
    return is_elementwise(node.name()) and operation(node) != "Expand"


def is_linear(node: Node) -> bool:
    """Whether an operation is linear in all inputs together that are no constants."""
    name = operation(node)
    if name in _PRODUCTS:
        is_divisor = [child is not None for child, _ in node.next_functions[1:2]]
        return len(inputs_of(node)) == 1 and not (name == "Div" and any(is_divisor))
    return name in _SUMS or name in COPIES


def is_stacked(place: Place) -> bool:
    """Whether a vector was put together from scalars."""
    stack = [place]
    while stack:
        node, _ = stack.pop()
        inputs = inputs_of(node)
        if operation(node) in ("Stack", "Cat"):
            if not all(is_scalar(child) for child in inputs):
                return False
        elif node.name() == LEAF or not inputs or not is_linear(node):
            return False
        else:
            stack.extend(child for child in inputs if not is_scalar(child))
    return True


def reduces_examples(node: Node) -> bool:
    """Whether an operation sums over the examples, and not over terms that were put together."""
    if operation(node) in LOSSES:
        return bool(node._saved_reduction != 0)  # type: ignore[attr-defined]
    if not sums_dimension_0(node):
        return False
    (place,) = inputs_of(node)
    return not (is_scalar(place) or is_stacked(place) or _is_summed(place))


def sums_dimension_0(node: Node) -> bool:
    """Whether an operation is a sum or mean over dimension 0, and maybe others."""
    if operation(node) not in REDUCTIONS:
        return False
    (place,) = inputs_of(node)
    shape, dims = shape_at(place), getattr(node, "_saved_dim", None)
    return bool(shape) and (not dims or 0 in {signed(d) % len(shape) for d in dims})


def _is_summed(place: Place) -> bool:
    """Whether it is a linear function of one tensor whose examples were summed before."""
    node = place[0]
    while is_linear(node) and len(inputs := inputs_of(node)) == 1:
        if sums_dimension_0(node):
            return True
        node = inputs[0][0]
    return False


def layout_of(place: Place) -> tuple[int, ...]:
    """The shape of what is reduced, or of what its entries were chosen from."""
    shape, node = shape_at(place), place[0]
    while len(inputs := inputs_of(node)) == 1:
        if operation(node) in CHOICES:
            before = shape_at(inputs[0])
            return before if len(before) > 1 else shape
        if not acts_by_entry(node):
            break
        node = inputs[0][0]
    return shape


def examples_at(place: Place, depth: int = 4) -> int | None:
    """The number of examples, where their tokens were put into one dimension before the loss."""
    entries = shape_at(place)[0]
    node = place[0]
    for _ in range(depth):
        inputs = inputs_of(node)
        if len(inputs) != 1:
            return None
        before = shape_at(inputs[0])
        if operation(node) in ("View", "UnsafeView", "ReshapeAlias"):
            together = {prod(before[:dims]) for dims in range(2, len(before) + 1)}
            return before[0] if entries in together and before[0] < entries else None
        if not before or before[0] != entries:
            return None
        node = inputs[0][0]
    return None

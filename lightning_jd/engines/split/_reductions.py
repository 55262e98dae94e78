"""Reductions over a batch: which operations they are, and of how many examples."""

from __future__ import annotations

from math import prod

from torch.autograd.graph import Node

from lightning_jd.engines.split._linear import is_linear, is_stacked
from lightning_jd.engines.split._region import (
    Place,
    inputs_of,
    is_scalar,
    operation,
    shape_at,
    signed,
)

#: Losses of torch that reduce by themselves, over entries or examples.
LOSSES = {
    "NllLoss",
    "NllLoss2D",
    "MseLoss",
    "SmoothL1Loss",
    "HuberLoss",
    "BinaryCrossEntropy",
    "BinaryCrossEntropyWithLogits",
    "SoftMarginLoss",
    "MultiMarginLoss",
}
REDUCTIONS = {"Sum", "Mean"}
#: Each number of the result depends on the number at the same position only.
BY_ENTRY = {
    "Abs",
    "Add",
    "Clamp",
    "ClampMax",
    "ClampMin",
    "Clone",
    "Div",
    "Elu",
    "Exp",
    "Expm1",
    "Gelu",
    "HuberLoss",
    "LeakyRelu",
    "Lgamma",
    "Log",
    "Log1P",
    "LogSigmoidForward",
    "LogSigmoid",
    "MaskedFill",
    "Maximum",
    "Minimum",
    "MseLoss",
    "Mul",
    "Neg",
    "Pow",
    "Reciprocal",
    "Relu",
    "Rsqrt",
    "Rsub",
    "Sgn",
    "Sigmoid",
    "Silu",
    "Sin",
    "SmoothL1Loss",
    "Softplus",
    "Sqrt",
    "Sub",
    "Tanh",
    "ToCopy",
    "Where",
    "Xlogy",
    "BinaryCrossEntropy",
    "BinaryCrossEntropyWithLogits",
}
#: Choose entries of their input.
CHOICES = {"Index", "MaskedSelect", "Gather", "IndexSelect", "Slice"}


def reduces_examples(node: Node) -> bool:
    """Whether an operation sums over the examples, and not over terms that were put together."""
    name = operation(node)
    if name in LOSSES:
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
    while operation(node) in BY_ENTRY | CHOICES and len(inputs := inputs_of(node)) == 1:
        before = shape_at(inputs[0])
        if operation(node) in CHOICES:
            return before if len(before) > 1 else shape
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

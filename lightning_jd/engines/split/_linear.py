"""Operations that a sum of terms may consist of."""

from __future__ import annotations

from torch.autograd.graph import Node

from lightning_jd.engines._reach import LEAF
from lightning_jd.engines.split._region import Place, inputs_of, is_scalar, operation

#: Linear in all of their inputs together.
_SUMS = {"Add", "Sub", "Rsub", "Neg", "Sum", "Mean", "Stack", "Cat"}
#: Linear where only one of their inputs is not a constant; a divisor must be the constant.
#: A choice between numbers is linear, too, if one of them is a constant.
_PRODUCTS = {"Mul", "Div", "Dot", "Mv", "Where", "NanToNum"}
#: The same numbers in another shape or type, or some of them.
COPIES = {
    "ToCopy",
    "Clone",
    "View",
    "UnsafeView",
    "ReshapeAlias",
    "Squeeze",
    "Unsqueeze",
    "Expand",
    "Unbind",
    "Alias",
}


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

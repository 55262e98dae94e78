"""A mean or sum over the batch, as one objective per example.

The gradient of such a loss at its input is split by example already: the slice of an example is the
gradient of its own share. So the shares are read off where the graph still holds the input, and the
vector that they make has the gradients that the losses before the reduction would have.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor
from torch.autograd.graph import Node

from lightning_jd.engines._reach import LEAF
from lightning_jd.engines.split._linear import COPIES, is_linear
from lightning_jd.engines.split._rebuild import rebuilt
from lightning_jd.engines.split._reductions import (
    ALONG_DIMENSION,
    BY_ENTRY,
    CHOICES,
    LOSSES,
    REDUCTIONS,
    examples_at,
    is_along_examples,
    layout_of,
    reduces_examples,
    sums_dimension_0,
)
from lightning_jd.engines.split._region import (
    Place,
    inputs_of,
    is_scalar,
    ones_at,
    operation,
    pull_back,
    root_of,
    shape_at,
    tensor_at,
)

#: Relative distance of two factors that are called equal.
_CLOSE = 1e-5


class NotSeparableError(Exception):
    """The scalar is no sum over examples, or the graph does not show that it is one."""


def instances_of(loss: Tensor) -> Tensor:
    """One loss per example, shape (b,), up to constants: the gradients are those of the losses.

    They are what the same code gives with ``reduction="none"``, averaged over what an example has
    more than one of (tokens, pixels, outputs). The summands of a plain sum are not averaged.

    Args:
        loss: A scalar.

    Raises:
        NotSeparableError: With the reason.

    Example:
        >>> x = torch.tensor([[1.0], [2.0]], requires_grad=True)
        >>> instances = instances_of((3 * x).square().mean())
        >>> torch.autograd.grad(instances[1], x)[0]
        tensor([[ 0.],
                [36.]])
    """
    with torch.no_grad():
        shares = _Shares(loss)
        found = shares.found()
    with torch.enable_grad():
        parts = [_per_entry(tensor * share) for tensor, share in found]
        vector = parts[0] if len(parts) == 1 else torch.stack(parts).sum(dim=0)
        return vector if shares.examples is None else vector.view(shares.examples, -1).sum(dim=1)


def _per_entry(products: Tensor) -> Tensor:
    return products.flatten(1).sum(dim=1) if products.ndim > 1 else products


class _Shares:
    """Follows a scalar down to tensors that are split by example.

    Args:
        loss: The scalar.

    Attributes:
        examples: How many examples there are, if they have several entries along dimension 0 each.
    """

    def __init__(self, loss: Tensor) -> None:
        self._loss, self._root = loss, root_of(loss)
        self.examples: int | None = None
        self._tensors: dict[Place, Tensor] = {}
        self._divisors: dict[Node, Tensor | float | None] = {}
        self._below: dict[Node, bool] = {}  # whether an operation is below the reduction
        self._single: dict[Node, bool] = {}  # and no operation in between has joined two tensors

    def found(self) -> list[tuple[Tensor, Tensor]]:
        """Tensors with the gradient of the scalar at each, scaled back to the losses."""
        self._visit(self._root)
        self._agree()
        inside = set(self._below)
        start = (ones_at(self._loss) * self._common_factor()).to(self._loss.dtype)
        gradients = pull_back(self._root, start, lambda place: place[0] in inside)
        missing = [place for place in gradients if place not in self._tensors]
        if missing:
            raise NotSeparableError(_unknown(missing[0]))
        return [(self._tensors[place], gradient) for place, gradient in gradients.items()]

    def _agree(self) -> None:
        """See that all tensors have the same examples."""
        sizes = {len(tensor) for tensor in self._tensors.values()}
        groups = {examples_at(place) for place in self._tensors}
        if len(sizes) != 1 or len(groups) != 1:
            raise NotSeparableError(f"its parts have {sorted(sizes)} entries along dimension 0")
        (self.examples,) = groups

    def _visit(self, root: Place) -> None:
        self._below[root[0]], self._single[root[0]] = False, True
        self._divisors[root[0]] = 1.0
        if not is_scalar(root):
            raise NotSeparableError("it is no scalar")
        stack = [root[0]]
        while stack:
            node = stack.pop()
            self._check(node)
            below = self._below[node] or reduces_examples(node)
            inputs = inputs_of(node)
            for place in inputs:
                if below and self._cuts(place, node):
                    continue
                if self._inherit(node, place, below, self._single[node] and len(inputs) == 1):
                    stack.append(place[0])

    def _inherit(self, node: Node, place: Place, below: bool, single: bool) -> bool:
        """Tell an operation what is known above it; whether that was news."""
        child = place[0]
        before = self._below.get(child), self._single.get(child), child in self._divisors
        divisor = self._divisors[node]
        if operation(node) == "Div" and not below:
            known = getattr(node, "_saved_other", None)
            divisor = None if known is None or divisor is None else divisor * known
        if child in self._below:
            if self._below[child] != below:
                raise NotSeparableError(f"{operation(child)} is used with and without a reduction")
            if self._divisors[child] is not divisor:
                self._divisors[child] = None  # two ways with different factors
            single = single and self._single[child]
        else:
            self._divisors[child] = divisor
        self._below[child], self._single[child] = below, single
        return before != (below, single, True)

    def _check(self, node: Node) -> None:
        name = operation(node)
        if not self._below[node]:
            if name in LOSSES or (name in REDUCTIONS and len(inputs_of(node)) == 1):
                return
            if not is_linear(node):
                raise NotSeparableError(f"{name} is no sum, mean or loss over a batch")
            return
        shape = shape_at((node, 0))
        inputs = [shape_at(place) for place in inputs_of(node)]
        keeps_examples = all(len(each) > 0 and each[0] == shape[0] for each in inputs)
        if name in CHOICES and self._single[node]:
            return
        if name in BY_ENTRY and keeps_examples:
            return
        if (name in REDUCTIONS or name in COPIES) and keeps_examples:
            return
        if name in ALONG_DIMENSION and keeps_examples and not is_along_examples(node):
            return
        if name in ("NllLoss", "NllLoss2D") and keeps_examples:
            return
        raise NotSeparableError(_unknown((node, 0)))

    def _cuts(self, place: Place, parent: Node) -> bool:
        """Whether the way ends here: the tensor is at hand and is split by example."""
        if place[0].name() == LEAF:
            raise NotSeparableError("a parameter is part of it, which belongs to no example")
        shape = shape_at(place)
        if not shape:
            raise NotSeparableError(_unknown(place))
        tensor = tensor_at(place, parent)
        if tensor is None and place[0] not in self._below:
            tensor = rebuilt(place)
        if tensor is None:
            return False
        if sums_dimension_0(place[0]):
            raise NotSeparableError(f"{operation(place[0])} has summed over dimension 0 before")
        if self._is_broadcast(shape, parent):
            raise NotSeparableError(f"{operation(parent)} spreads a tensor over the examples")
        self._tensors[place] = tensor
        return True

    def _is_broadcast(self, shape: tuple[int, ...], parent: Node) -> bool:
        result = shape_at((parent, 0))
        is_entrywise = operation(parent) in BY_ENTRY and self._below.get(parent, False)
        return is_entrywise and len(result) > 0 and shape[0] != result[0]

    def _common_factor(self) -> Tensor | float:
        """What takes the shares of the examples back to their losses.

        There is one for all reductions, because the proportions between the parts of the loss must
        stay. If these ask for different ones, the mean of the losses is the scalar.
        """
        factors = [
            self._factor(node)
            for node, below in self._below.items()
            if not below and reduces_examples(node)
        ]
        first, *others = factors
        if not others:
            return first
        count = float(self._count(next(iter(self._tensors))))
        numbers = torch.stack([self._loss.new_tensor(0) + factor for factor in factors])
        agree = (numbers - numbers[0]).abs().max() <= _CLOSE * numbers[0].abs()
        return torch.where(agree, numbers[0], numbers.new_tensor(count))  # no host has to wait

    def _count(self, place: Place) -> int:
        return shape_at(place)[0] if self.examples is None else self.examples

    def _factor(self, node: Node) -> Tensor | float:
        """The number of examples if it is a mean, and 1 if it is a plain sum."""
        name, divisor = operation(node), self._divisors[node]
        shape = layout_of(inputs_of(node)[0])
        count: Tensor | float = shape[0] if self.examples is None else self.examples
        is_mean = name == "Mean" or getattr(node, "_saved_reduction", 2) == 1
        if not is_mean:
            if isinstance(divisor, float) and divisor == 1.0:
                return 1.0
            if divisor is not None and len(shape) == 1 and self.examples is None:
                count = divisor  # a mean by hand
        elif name in ("NllLoss", "NllLoss2D") and self.examples is None:
            # The sum of the weights of the classes, or the number of labels that are not ignored.
            entries = prod(shape) // shape[1]
            count = node._saved_total_weight * (shape[0] / entries)  # type: ignore[attr-defined]
        return count


def _unknown(place: Place) -> str:
    return f"{operation(place[0])} with shape {shape_at(place)} cannot be told apart by example"

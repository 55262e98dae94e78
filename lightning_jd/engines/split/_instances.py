"""A mean or sum over the batch, as one objective per example.

The gradient of such a loss at its input is split by example already: the slice of an example is the
gradient of its own share. So the shares are read off where the graph still holds the input, and the
vector that they make has the gradients that the losses before the reduction would have.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from math import prod

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import Node

from lightning_jd.engines._graph import LEAF, Place
from lightning_jd.engines.split._operations import (
    CHOICES,
    COPIES,
    LOSSES,
    REDUCTIONS,
    acts_by_entry,
    examples_at,
    is_linear,
    layout_of,
    reduces_examples,
)
from lightning_jd.engines.split._origin import flows_into, origin_of, starts_sum
from lightning_jd.engines.split._rebuild import rebuilt
from lightning_jd.engines.split._region import (
    inputs_of,
    ones_at,
    operation,
    pull_back,
    root_of,
    shape_at,
    tensor_at,
)
from lightning_jd.engines.tape.owners import Owners
from lightning_jd.engines.tape.owners._owners import NOBODY
from lightning_jd.engines.tape.owners.flow import REDUCED
from lightning_jd.engines.tape.owners.flow._registry import Flowed

#: Relative distance of two factors that are called equal.
_CLOSE = 1e-5


_PARAMETER = "a parameter is part of it, which belongs to no example"
#: Operations that entries, chosen from a tensor, may go through before they are summed.
_BY_CHOICE = COPIES | CHOICES | REDUCTIONS | LOSSES.keys()


class NotSeparableError(Exception):
    """The scalar is no sum over examples, or the graph does not show that it is one."""


def instances_of(loss: Tensor, parameters: Collection[int] = ()) -> Tensor:
    """One loss per example, shape (b,), up to constants: the gradients are those of the losses.

    They are what the same code gives with ``reduction="none"``, averaged over what an example has
    more than one of (tokens, pixels, outputs). The summands of a plain sum are not averaged.

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
        shares = _Shares(loss, parameters)
        found = shares.found()
    with torch.enable_grad():
        parts = [_by_example(t * share, owners, shares.m) for t, share, owners in found]
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(dim=0)


def _by_example(products: Tensor, owners: Owners, m: int) -> Tensor:
    """The sum of the entries of each example, shape (m,)."""
    assert owners.axis is not None
    lines = products.movedim(owners.axis, 0)
    vector = lines.flatten(1).sum(dim=1) if lines.ndim > 1 else lines
    if np.array_equal(owners.ids, np.arange(m)):
        return vector
    if np.array_equal(owners.ids, np.repeat(np.arange(m), len(owners.ids) // m)):
        return vector.view(m, -1).sum(dim=1)
    index = torch.from_numpy(owners.ids).to(vector.device)
    return vector.new_zeros(m).index_add(0, index, vector)


class _Shares:
    """Follows a scalar down to tensors that are split by example.

    Attributes:
        m: How many examples there are.
    """

    def __init__(self, loss: Tensor, parameters: Collection[int]) -> None:
        self._loss, self._root, self._parameters = loss, root_of(loss), parameters
        self.m = 0
        self._tensors: dict[Place, Tensor] = {}
        self._owners: dict[Place, Owners] = {}  # below the reduction: who has which slice
        self._divisors: dict[Node, Tensor | float | None] = {}
        self._below: dict[Node, bool] = {}  # whether an operation is below the reduction
        self._seen: set[Place] = set()
        self._single: dict[Node, bool] = {}  # and entries were only chosen in between

    def found(self) -> list[tuple[Tensor, Tensor, Owners]]:
        """Tensors, the gradient of the scalar at each, scaled back to the losses, and owners."""
        self._visit(self._root)
        self._agree()
        inside = set(self._below)
        start = (ones_at(self._loss) * self._common_factor()).to(self._loss.dtype)
        gradients = pull_back(self._root, start, lambda place: place[0] in inside)
        starts = [place for place in gradients if starts_sum(place, self._parameters)]
        for place in starts:
            del gradients[place]
        missing = [place for place in gradients if place not in self._tensors]
        if missing:
            raise NotSeparableError(_unknown(missing[0]))
        self._trace(gradients)
        return [
            (self._tensors[place], gradient, self._owners[place])
            for place, gradient in gradients.items()
        ]

    def _agree(self) -> None:
        """Check that all tensors have the same examples, also where these have several entries."""
        for place in self._tensors:
            owners = self._owners[place]
            if owners.axis == 0 and np.array_equal(owners.ids, np.arange(len(owners.ids))):
                examples = examples_at(place)
                if examples is not None:
                    ids = np.repeat(np.arange(examples), len(owners.ids) // examples)
                    self._owners[place] = Owners(0, ids)
        counts = {int(self._owners[place].ids.max(initial=-1)) + 1 for place in self._tensors}
        if len(counts) != 1:
            raise NotSeparableError(f"its parts have {sorted(counts)} examples in dimension 0")
        (self.m,) = counts

    def _trace(self, places: Collection[Place]) -> None:
        """Check that the slices are examples, and not the rows of a parameter."""
        for place in places:
            origin = origin_of(place, self._owners[place], self._parameters)
            if origin.parameter is not None:
                shape = shape_at(origin.parameter)
                raise NotSeparableError(
                    f"the {self.m} slices of {_described(place)} are not examples: each belongs to "
                    f"a part of a parameter of shape {shape}. It is a term that depends on "
                    "parameters only, or a statistic over the batch"
                )
            if origin.listed is not None:
                warnings.warn(
                    f"The objectives are the {self.m} slices along dimension 0 of "
                    f"{_described(place)}, which `torch.stack` has made of a list (of times, layers"
                    " or tasks), not the examples of a batch. Put the batch into dimension 0, for "
                    "instance with `.transpose(0, 1)`, if examples are meant.",
                    UserWarning,
                    stacklevel=2,
                )

    def _visit(self, root: Place) -> None:
        self._below[root[0]], self._single[root[0]] = False, True
        self._divisors[root[0]] = 1.0
        stack = [root]
        while stack:
            place = stack.pop()
            node = place[0]
            if not self._below[node]:
                if starts_sum(place, self._parameters):
                    continue
                self._check(node)
            below = self._below[node] or reduces_examples(node)
            chosen = operation(node) in _BY_CHOICE or acts_by_entry(node)
            single = self._single[node] and chosen and len(inputs_of(node)) == 1
            for child, owners in self._inputs(place):
                if owners is not None:
                    self._own(child, owners)
                    if self._cuts(child, node):
                        continue
                if self._inherit(node, child, below, single or not below):
                    stack.append(child)

    def _inputs(self, place: Place) -> list[tuple[Place, Owners | None]]:
        """The inputs of an operation, with the owners of their slices below a reduction."""
        node = place[0]
        if self._below[node]:
            flows = flows_into(place, self._owners[place])
            return [(child, self._proven(place, child, flow)) for child, flow in flows]
        inputs = inputs_of(node)
        if not reduces_examples(node):
            return [(child, None) for child in inputs]
        return [(child, Owners(0, np.arange((shape_at(child) or (0,))[0]))) for child in inputs]

    def _proven(self, place: Place, child: Place, flow: Flowed) -> Owners:
        """The owners of an input, each slice of which matters to one example."""
        if isinstance(flow, Owners) and flow.axis is not None and not (flow.ids == NOBODY).any():
            return flow
        shape = shape_at(child)
        if operation(place[0]) in CHOICES and self._single[place[0]] and shape:
            return Owners(0, np.arange(shape[0]))  # of those that entries were chosen from
        if flow is REDUCED:
            raise NotSeparableError(f"{operation(place[0])} spreads a tensor over the examples")
        raise NotSeparableError(_unknown(place))

    def _own(self, place: Place, owners: Owners) -> None:
        if place[0].name() == LEAF:
            raise NotSeparableError(_PARAMETER)
        if not shape_at(place) or not self._owners.setdefault(place, owners).equals(owners):
            raise NotSeparableError(_unknown(place))

    def _inherit(self, node: Node, place: Place, below: bool, single: bool) -> bool:
        """Hand the state of an operation down to an input; whether that changed it."""
        child = place[0]
        before = self._below.get(child), self._single.get(child), place in self._seen
        self._seen.add(place)
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
        """Check that an operation above the reductions is a sum, or is a reduction itself."""
        name = operation(node)
        if node.name() == LEAF:
            raise NotSeparableError(_PARAMETER)
        if name in LOSSES or (name in REDUCTIONS and len(inputs_of(node)) == 1):
            return
        if not is_linear(node):
            raise NotSeparableError(f"{name} is no sum, mean or loss over a batch")

    def _cuts(self, place: Place, parent: Node) -> bool:
        """Whether the way ends here: the tensor is at hand, and is split by example."""
        tensor = tensor_at(place, parent)
        if tensor is None and place[0] not in self._below:
            tensor = rebuilt(place)
        if tensor is None:
            return False
        self._tensors[place] = tensor
        return True

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
        if not factors:
            raise NotSeparableError("nothing in it is a sum or mean over a batch")
        first, *others = factors
        if not others:
            return first
        numbers = torch.stack([self._loss.new_tensor(0) + factor for factor in factors])
        agree = (numbers - numbers[0]).abs().max() <= _CLOSE * numbers[0].abs()
        return torch.where(agree, numbers[0], numbers.new_tensor(float(self.m)))  # no host waits

    def _factor(self, node: Node) -> Tensor | float:
        """The number of examples if it is a mean, and 1 if it is a plain sum."""
        name, divisor = operation(node), self._divisors[node]
        shape = layout_of(inputs_of(node)[0])
        is_folded = shape[0] != self.m and any(
            len(self._owners[place].ids) > self.m for place in self._tensors
        )
        is_mean = name == "Mean" or getattr(node, "_saved_reduction", 2) == 1
        if not is_mean:
            if isinstance(divisor, float) and divisor == 1.0:
                return 1.0
            if divisor is not None and len(shape) == 1 and not is_folded:
                return divisor  # a mean by hand
        elif name in LOSSES and LOSSES[name].picks_classes and not is_folded:
            # The sum of the weights of the classes, or the number of labels that are not ignored.
            entries = prod(shape) // shape[1]
            return node._saved_total_weight * (shape[0] / entries)  # type: ignore[attr-defined,no-any-return]
        return float(self.m if is_folded else shape[0])


def _unknown(place: Place) -> str:
    return f"{_described(place)} cannot be told apart by example"


def _described(place: Place) -> str:
    return f"{operation(place[0])} with shape {shape_at(place)}"

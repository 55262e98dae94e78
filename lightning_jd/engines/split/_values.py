"""The values of the terms of a sum, as far as their operations have kept enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_jd.engines._graph import LEAF, Place
from lightning_jd.engines.split._operations import LOSSES, RESHAPED
from lightning_jd.engines.split._region import operation, shape_at
from lightning_jd.engines.tape.graph import signed

#: An operation to its result, computed again from what it has kept.
_AGAIN: dict[str, Callable[[Any], Tensor]] = {
    **{name: loss.value for name, loss in LOSSES.items() if loss.value is not None},
    "Abs": lambda n: n._saved_self.abs(),
    "Pow": lambda n: n._saved_self**n._saved_exponent,
    "Log": lambda n: n._saved_self.log(),
    "Log1P": lambda n: n._saved_self.log1p(),
    "Softplus": lambda n: F.softplus(n._saved_self, n._saved_beta, n._saved_threshold),
}
#: Operations whose result follows from one input, or from two.
_OF_ONE: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "Select": lambda n, x: x.select(signed(n._saved_dim), signed(n._saved_index)),
    "Slice": lambda n, x: torch.ops.aten.slice(
        x, signed(n._saved_dim), signed(n._saved_start), signed(n._saved_end), n._saved_step
    ),
    "Gather": lambda n, x: x.gather(signed(n._saved_dim), n._saved_index),
    "MaskedSelect": lambda n, x: x[n._saved_mask],
    "Index": lambda n, x: x[tuple(slice(None) if i is None else i for i in n._saved_indices)],
    **dict.fromkeys(("ToCopy", "Clone"), lambda _, x: x),
    **dict.fromkeys(RESHAPED, lambda n, x: x.reshape(shape_at((n, 0)))),
    "Expand": lambda n, x: x.expand(shape_at((n, 0))),
    "Mean": lambda n, x: _reduced(torch.mean, n, x),
    "Sum": lambda n, x: _reduced(torch.sum, n, x),
    "Neg": lambda _, x: -x,
}
_OF_TWO: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "Mul": lambda _, x, y: x * y,
    "Div": lambda _, x, y: x / y,
    "Add": lambda n, x, y: torch.add(x, y, alpha=n._saved_alpha),
    "Sub": lambda n, x, y: torch.sub(x, y, alpha=n._saved_alpha),
}
#: How many operations are looked at for one value.
_MOST = 64


def value_at(place: Place) -> Tensor | None:
    """What was computed at a place; ``None`` if that is not known."""
    with torch.no_grad():
        try:
            return _Values().at(place)
        except (AttributeError, RuntimeError, ValueError):  # another version of torch
            return None


class _Values:
    """Values that are known, each computed once."""

    def __init__(self) -> None:
        self._known: dict[Place, Tensor | None] = {}

    def at(self, place: Place) -> Tensor | None:
        if place not in self._known:
            if len(self._known) == _MOST:
                return None
            self._known[place] = None  # meanwhile: it counts as looked at
            self._known[place] = self._compute(place)
        return self._known[place]

    def _compute(self, place: Place) -> Tensor | None:
        node: Any = place[0]
        if node.name() == LEAF:
            leaf: Tensor = node.variable
            return leaf.detach()
        name = operation(node)
        result = getattr(node, "_saved_result", None)
        if isinstance(result, Tensor) and result.output_nr == place[1]:
            return result.detach()
        if name in _AGAIN:
            return _AGAIN[name](node).detach()
        if name in _OF_ONE:
            x = self._input(node, 0)
            return None if x is None else _OF_ONE[name](node, x)
        if name in _OF_TWO:
            x, y = self._input(node, 0), self._input(node, 1)
            return None if x is None or y is None else _OF_TWO[name](node, x, y)
        return None

    def _input(self, node: Any, slot: int) -> Tensor | None:
        """An input: as the operation has kept it, or else computed."""
        kept = getattr(node, ("_saved_self", "_saved_other")[slot], None)
        if isinstance(kept, Tensor):
            return kept.detach()
        if slot >= len(node.next_functions) or node.next_functions[slot][0] is None:
            return None if kept is None else torch.as_tensor(kept)
        return self.at(node.next_functions[slot])


def _reduced(function: Callable[..., Tensor], node: Any, x: Tensor) -> Tensor:
    dims = getattr(node, "_saved_dim", None)
    if not dims:
        return function(x)
    return function(x, dim=[signed(d) for d in dims], keepdim=bool(node._saved_keepdim))

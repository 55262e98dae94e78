"""Reads the arguments of an operation from its autograd node."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

_WRAP = 2**63


def signed(number: Any) -> Any:
    """Undo the wrap-around of negative integers, which autograd shows as unsigned.

    Example:
        >>> signed(18446744073709551615), signed((0, 18446744073709551614)), signed(None)
        (-1, (0, -2), None)
    """
    kind = type(number)
    if kind is int:
        return number if number < _WRAP else number - 2 * _WRAP
    if kind is tuple or kind is list:
        return tuple([signed(entry) for entry in number])
    return number


def reader(*names: str) -> Callable[[Node], Hashable]:
    """A function that reads the named arguments; ``None`` is what this torch does not save."""
    attributes = ["_saved_" + name for name in names]

    def read(node: Node) -> Hashable:
        return tuple([signed(getattr(node, attribute, None)) for attribute in attributes])

    return read


def read_indices(node: Node) -> Hashable:
    """How each axis of ``x[indices]`` is indexed: ``None`` (not), or a kind and a rank.

    The kind is ``"all"`` (in order) or ``"data"``. Only positions matter, not values:
    ``x[arange(len(x)), y]`` keeps row i of x in row i, whatever y holds. That is looked up in the
    tensor itself, in every step.
    """
    sizes = node._saved_self_sym_sizes  # type: ignore[attr-defined]
    kinds: list[tuple[str, int] | None] = []
    for size, index in zip(sizes, node._saved_indices, strict=False):  # type: ignore[attr-defined]
        if index is None:
            kinds.append(None)
        elif index.dtype in (torch.bool, torch.uint8):
            kinds.append(("data", -1))
        else:
            kinds.append(("all" if _counts_up(index, size) else "data", index.ndim))
    return tuple(kinds)


def _counts_up(index: Tensor, size: int) -> bool:
    if index.ndim != 1 or len(index) != size:
        return False
    return torch.equal(index, torch.arange(size, device=index.device))

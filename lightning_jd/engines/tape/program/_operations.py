"""One recorded operation, and what is known of the tensors that it reads and makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Slot(NamedTuple):
    """A tensor of a program, by number."""

    number: int


#: Where results go that are not computed.
NOTHING = Slot(-1)


@dataclass(frozen=True)
class Value:
    """What is known of a tensor when it is recorded.

    Attributes:
        memory: A number per storage; each input has one of its own, even where two share memory,
            because in another step they may not.
        geometry: Shape, strides and offset.
        dtype: Its type.
        is_input: It is handed to the program.
    """

    memory: int
    geometry: tuple[tuple[int, ...], tuple[int, ...], int]
    dtype: torch.dtype
    is_input: bool = False


def geometry_of(tensor: Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Shape, strides and offset of a tensor."""
    return tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())


@dataclass
class Operation:
    """A call.

    Attributes:
        function: What is called.
        args: Its arguments, with a :class:`Slot` in place of each tensor.
        kwargs: The same by name.
        results: Where each tensor that is returned goes.
        writes: The numbers of the memories that it writes to, new ones included.
        returns_tuple: Whether the call returns several tensors.
        is_late: It happens when the weights are known.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[Slot, ...]
    writes: frozenset[int]
    returns_tuple: bool
    is_late: bool

    def reads(self) -> Iterator[Slot]:
        """The tensors among the arguments."""
        yield from slots_in((self.args, self.kwargs))

    def renamed(self, names: dict[Slot, Slot]) -> Operation:
        """The same with other slots as arguments."""
        args, kwargs = replaced((self.args, self.kwargs), names)
        return replace(self, args=args, kwargs=kwargs)


def slots_in(tree: Any) -> Iterator[Slot]:
    """All slots in nested arguments."""
    if isinstance(tree, Slot):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for entry in tree:
            yield from slots_in(entry)
    elif isinstance(tree, dict):
        yield from slots_in(tuple(tree.values()))


def replaced(tree: Any, names: dict[Slot, Slot]) -> Any:
    """Nested arguments with some slots replaced."""
    if isinstance(tree, Slot):
        return names.get(tree, tree)
    if isinstance(tree, (tuple, list)):
        return type(tree)([replaced(entry, names) for entry in tree])
    if isinstance(tree, dict):
        return {key: replaced(entry, names) for key, entry in tree.items()}
    return tree

"""Reads the arguments of an operation from its autograd node."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch.autograd.graph import Node

from lightning_jd.engines.tape.graph._constants import Ids

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


Reader = Callable[[Node], Hashable]
#: What reads the arguments of operations that matter to the flow of owners, by name. It runs for
#: every node in every step, so results are raw: :func:`signed` is applied to them once.
READERS: dict[str, Reader] = {}
_version = 0


def table_changed() -> None:
    """The tape was taught an operation, or has forgotten one."""
    global _version
    _version += 1


def table_version() -> int:
    """A number that changes with every table, so that older plans do not fit."""
    return _version


def reader(*names: str) -> Callable[[Node], Hashable]:
    """A function that reads the named arguments, as a tuple."""
    attributes = ["_saved_" + name for name in names]
    get = attrgetter(*attributes)

    def read(node: Node) -> Hashable:
        try:
            found = get(node)
        except AttributeError:  # ``None`` is what this torch does not save
            return tuple([getattr(node, attribute, None) for attribute in attributes])
        return found if len(attributes) > 1 else (found,)

    return read


def is_cast_to_complex(node: Node) -> Hashable:
    """Whether a cast is one between real and complex numbers, which does more than copy."""
    ((below, output),) = node.next_functions
    assert below is not None
    result, source = node._input_metadata[0].dtype, below._input_metadata[output].dtype
    return bool(result.is_complex != source.is_complex)


READERS["ToCopyBackward0"] = is_cast_to_complex


def read_indices(node: Node) -> Hashable:
    """How each axis of ``x[indices]`` is indexed: ``None`` (not), or the rank of its index.

    A mask has the rank -1 - d, where d is the number of axes that it covers. There are no facts of
    indices that would have to be recomputed or loaded.
    """
    if is_hooked(node, "indices"):
        return None
    ranks: list[int | None] = []
    for index in node._saved_indices:  # type: ignore[attr-defined]
        if index is None:
            ranks.append(None)
        else:
            ranks.append(-1 - index.ndim if index.dtype in _MASKS else index.ndim)
    return tuple(ranks)


_MASKS = (torch.bool, torch.uint8)
#: Entries of an index that are read at most; owners behind longer ones are found by experiment.
_READABLE = 1 << 20


class Indices:
    """The values of index tensors, read on demand: the one part of a graph that is data.

    A plan may depend on them, so the ones that were read are part of the key of the plan.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._found: dict[int, tuple[Ids, ...] | None] = {}

    def of(self, node: int) -> tuple[Ids, ...] | None:
        """The indices that an operation has saved.

        A mask is read as the positions of its true entries, one array per axis of the mask. A
        single index has the size 1 along axes that it was expanded along, as for ``scatter_add``.

        Returns:
            ``None`` if they are too long, or would have to be recomputed or loaded.
        """
        if node not in self._found:
            self._found[node] = _index_values(self._nodes[node])
        return self._found[node]

    @property
    def read(self) -> frozenset[int]:
        """The operations whose indices were read."""
        return frozenset(self._found)

    def digest(self, nodes: Iterable[int]) -> Hashable:
        """Equal for equal indices."""
        found: list[Hashable] = []
        for node in sorted(nodes):
            arrays = self.of(node)
            if arrays is None:
                found.append(None)
                continue
            shapes = tuple([array.shape for array in arrays])
            content = hashlib.blake2b(digest_size=16)
            for array in arrays:
                content.update(array.tobytes())
            found.append((shapes, content.digest()))
        return tuple(found)


def _index_values(node: Node) -> tuple[Ids, ...] | None:
    for name in ("index", "indices", "mask"):
        if hasattr(node, "_saved_" + name):
            break
    else:
        return None
    if is_hooked(node, name):
        return None
    saved = getattr(node, "_saved_" + name)
    arrays: list[Ids] = []
    for index in saved if isinstance(saved, tuple) else (saved,):
        if index is None:
            continue
        for axis, stride in enumerate(index.stride()):
            if stride == 0 and name == "index":
                index = index.narrow(axis, 0, min(1, index.shape[axis]))
        if index.numel() > _READABLE:
            return None
        if index.dtype in _MASKS:
            arrays += index.cpu().numpy().nonzero()
        else:
            arrays.append(index.cpu().numpy().astype(np.int64))
    return tuple(arrays)


#: Whether saved tensors show their hooks. Before torch 2.13 they do not, and each may have some.
SHOWS_HOOKS = hasattr(torch._C._autograd.SavedTensor, "unpack_hook")


def is_hooked(node: Node, name: str) -> bool:
    """Whether a saved tensor, or one of several, shows a hook that runs when it is read."""
    raw = getattr(node, "_raw_saved_" + name, None)
    several = raw if isinstance(raw, tuple) else (raw,)
    return any(getattr(one, "unpack_hook", None) is not None for one in several)


def may_be_hooked(node: Node, name: str) -> bool:
    """Whether a saved tensor, or one of several, may be recomputed or loaded when it is read."""
    return not SHOWS_HOOKS or is_hooked(node, name)


def any_hooked(node: Node) -> bool:
    """Whether some saved tensor of a node is recomputed or loaded when it is read."""
    prefix = "_raw_saved_"
    names = [name[len(prefix) :] for name in dir(node) if name.startswith(prefix)]
    return any(is_hooked(node, name) for name in names)

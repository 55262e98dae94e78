"""The table of register_flow, and the description of an operation for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal

from lightning_jd.engines.tape.graph import READERS, Ids, Reader, Shape, table_changed
from lightning_jd.engines.tape.owners._owners import Owners, joined
from lightning_jd.errors import ArgumentError


class _Reduced(Enum):
    REDUCED = "every objective matters to every entry"


#: What flows into an input that all slices share, such as a weight.
REDUCED: Final = _Reduced.REDUCED
#: Owners of an input, REDUCED, or None where nothing is proven (or no gradient is needed).
Flowed = Owners | Literal[_Reduced.REDUCED] | None


class UnprovenError(Exception):
    """Raised by a flow that does not apply; the experiment is made then."""


def prove(condition: bool) -> None:
    """Raise unless a condition of a flow holds.

    Raises:
        UnprovenError: If it does not.
    """
    if not condition:
        raise UnprovenError


@dataclass(frozen=True)
class Crossing:
    """An operation that owners are about to cross, from its outputs to its inputs.

    Attributes:
        owners: The owners of each output; ``None`` for an output that no loss depends on.
        shapes: The shape of each output.
        inputs: The shape of each input; ``None`` for an input that needs no gradient.
        facts: Arguments of the operation, as listed when the flow was registered.
        read: Reads the index tensors of the operation; see :attr:`indices`.
    """

    owners: Sequence[Owners | None]
    shapes: Sequence[Shape]
    inputs: Sequence[Shape | None]
    facts: tuple[Any, ...]
    read: Callable[[], tuple[Ids, ...] | None] = lambda: None

    @property
    def only(self) -> Owners:
        """The owners of the first output, which must be the only one that is used."""
        first, *rest = self.owners
        if first is None or any(owners is not None for owners in rest):
            raise UnprovenError
        return first

    @property
    def axis(self) -> int:
        """The axis of the owners of the only output."""
        if self.only.axis is None:
            raise UnprovenError
        return self.only.axis

    @property
    def rank(self) -> int:
        """The number of dimensions of the first output."""
        return len(self.shapes[0])

    @property
    def input(self) -> Shape:
        """The shape of the first input."""
        if not self.inputs or self.inputs[0] is None:
            raise UnprovenError
        return self.inputs[0]

    def dims(self, fact: int, rank: int) -> tuple[int, ...]:
        """A fact that is one axis or several, as non-negative numbers."""
        value = self.facts[fact]
        listed = (value,) if isinstance(value, int) else value
        prove(isinstance(listed, tuple) and all(isinstance(dim, int) for dim in listed))
        return tuple([dim % rank if rank else 0 for dim in listed])

    def dim(self, fact: int, rank: int) -> int:
        """A fact that is one axis, as a non-negative number."""
        (dim,) = self.dims(fact, rank)
        return dim

    @property
    def indices(self) -> tuple[Ids, ...]:
        """The values of the index tensors; a plan that was made with them holds for them only."""
        if (found := self.read()) is None:
            raise UnprovenError
        return found

    def everywhere(self, flowed: Flowed) -> list[Flowed]:
        """The same for every input."""
        return [flowed] * len(self.inputs)


Flow = Callable[[Crossing], Sequence[Flowed]]
_FLOWS: dict[str, Flow] = {}


def register_flow(*names: str, facts: Reader | None = None) -> Callable[[Flow], Flow]:
    """Teach the tape how owners flow through an operation.

    Args:
        names: The names of the autograd nodes, ``y.grad_fn.name()``, such as ``"MmBackward0"``.
        facts: Reads the arguments of the operation that the flow depends on, if any; see
            :func:`reader`.

    Raises:
        ArgumentError: If there is a flow for such a node already.
    """

    def register(flow: Flow) -> Flow:
        for name in names:
            if name in _FLOWS:
                raise ArgumentError(
                    f"`register_flow` must name an operation without a flow, got {name!r}. Remove "
                    "the old one with `unregister_flow` first."
                )
            _FLOWS[name] = flow
            if facts is not None:
                READERS[name] = facts
        table_changed()
        return flow

    return register


def unregister_flow(name: str) -> None:
    """Forget a flow; what owners do in the operation is then found by experiment."""
    _FLOWS.pop(name, None)
    READERS.pop(name, None)
    table_changed()


def flow_of(name: str, at: Crossing) -> Sequence[Flowed]:
    """What flows into each input of a node of this name."""
    present = [owners for owners in at.owners if owners is not None]
    if all(owners.axis is None and owners.equals(present[0]) for owners in present):
        # one loss above everything: whatever the operation does, only that loss is below it
        return at.everywhere(present[0])
    flow = _FLOWS.get(name)
    if flow is None:
        return at.everywhere(None)
    try:
        return flow(at)
    except UnprovenError:
        return at.everywhere(None)


def both(first: Owners, second: Owners) -> Owners:
    """Owners of a tensor that is used twice."""
    found = joined(first, second)
    if found is None:
        raise UnprovenError
    return found


def is_known(name: str) -> bool:
    """Whether there is a flow for nodes of this name."""
    return name in _FLOWS

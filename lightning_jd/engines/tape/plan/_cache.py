"""What is remembered between steps: plans, and when a kind of graph was last certified.

Keys and values are plain data. Neither graphs nor parameters are kept alive, and both tables forget
what was not used for the longest time.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from torch import Tensor
from typing_extensions import override

from lightning_jd.engines._objectives import Output
from lightning_jd.engines.tape.graph import (
    LEAF,
    Edge,
    Graph,
    Record,
    records_of,
    table_version,
    types_in,
    walk,
)
from lightning_jd.engines.tape.owners import Evidence, Questions
from lightning_jd.engines.tape.plan._plan import Plan, make_plan

_Value = TypeVar("_Value")
#: Plans that are remembered for one graph, whose index tensors may differ from step to step.
_PLANS = 8
#: Integers up to here are dimensions, strides and options; larger ones are sizes and positions.
_EXACT = 8


class Recent(Generic[_Value]):
    """A table that keeps as many entries as its size, those that were used last."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[Hashable, _Value] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], _Value]) -> _Value:
        """The entry for a key; made if there is none."""
        found = self.find(key)
        if found is None:
            found = make()
            self.put(key, found)
        return found

    def find(self, key: Hashable) -> _Value | None:
        """The entry for a key, if there is one."""
        found = self._entries.pop(key, None)
        if found is not None:
            self._entries[key] = found  # the last to be forgotten
        return found

    def put(self, key: Hashable, value: _Value) -> None:
        """Remember an entry, and forget the one that was not used for the longest time."""
        self._entries[key] = value
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()


@dataclass
class Standing:
    """What certificates have shown about one kind of graph.

    Attributes:
        demoted: Parameters whose share of the Gramian, or whose gradient, was wrong.
    """

    demoted: frozenset[int] = frozenset()
    _steps: Counter[Hashable] = field(default_factory=Counter)

    def is_due(self, delivery: Hashable, every: int) -> bool:
        """Whether the next step must be certified.

        Args:
            delivery: How gradients are delivered; each way is certified for itself.
            every: Steps between two certificates.
        """
        return self._steps[delivery] % max(1, every) == 0

    def passed(self, delivery: Hashable) -> None:
        """Count a step."""
        self._steps[delivery] += 1


class KnownGraph:
    """One graph, sizes included: its records and the plans for it."""

    def __init__(self, graph: Graph) -> None:
        _, self.signature, self.roots = graph
        self.records = records_of(self.signature)
        #: The same for graphs that differ in sizes only.
        self.kind = _kind(self.records, self.roots)
        #: What the last step with this graph did, see :class:`~lightning_jd.engines.tape._way.Way`.
        self.way: Any = None
        self._plans: Recent[Plan] = Recent(_PLANS)
        self._questions = Questions()

    @property
    def is_static(self) -> bool:
        """Whether plans depend on the structure of the graph only, and not on data."""
        asked = self._questions
        return not (asked.read or asked.crossed)

    def plan(self, evidence: Evidence, demoted: frozenset[int] = frozenset()) -> Plan:
        """The plan for this graph and the data of this step; demoted parameters are not claimed."""
        found = self._plans.find(self._key(evidence, demoted))
        if found is None:
            found = make_plan(self.records, self.roots, evidence, demoted, self.kind)
            evidence.asked(self._questions)
            self._plans.put(self._key(evidence, demoted), found)
        return found

    def _key(self, evidence: Evidence, demoted: frozenset[int]) -> Hashable:
        digest = None if self.is_static else evidence.digest(self._questions)
        return evidence.m, demoted, digest


class _Key:
    """A long tuple whose hash is computed once."""

    __slots__ = ("_hash", "_parts")

    def __init__(self, *parts: Hashable) -> None:
        self._parts, self._hash = parts, hash(parts)

    @override
    def __hash__(self) -> int:
        return self._hash

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._parts == other._parts


_known: Recent[KnownGraph] = Recent(64)
_standing: Recent[Standing] = Recent(256)


def known_graph(
    outputs: Sequence[Output], parameters: Sequence[Tensor]
) -> tuple[Graph, KnownGraph]:
    """The graph below the losses, and what is known of graphs that look like it.

    Raises:
        GraphError: If a part of the model is hidden behind reentrant checkpointing.
    """
    graph = walk(outputs, parameters)
    key = _Key(graph.signature, graph.roots, table_version())
    return graph, _known.get(key, lambda: KnownGraph(graph))


def standing_of(
    known: KnownGraph, graph: Graph, owners: int, model: Hashable, *, is_hooked: bool
) -> Standing:
    """What certificates have shown about graphs of this kind and these types, in one model."""
    types = frozenset(types_in(graph))
    key = model, known.kind, types, owners == 1, is_hooked, table_version()
    return _standing.get(key, Standing)


def forget() -> None:
    """Forget all plans and certificates."""
    _known.clear()
    _standing.clear()


def _kind(records: tuple[Record, ...], roots: tuple[Edge, ...]) -> int:
    shapeless = [
        (r.name, *map(len, r.shapes), r.inputs, r.facts if r.name == LEAF else _coarse(r.facts))
        for r in records
    ]
    return hash((roots, *shapeless))


def _coarse(facts: Hashable) -> Hashable:
    """Arguments, sizes and positions among them up to a factor of two.

    Example:
        >>> _coarse((1, 100, "mean"))
        (1, ('about', True, 7), 'mean')
    """
    if isinstance(facts, tuple):
        return tuple([_coarse(fact) for fact in facts])
    if type(facts) is int and abs(facts) > _EXACT:
        return "about", facts > 0, facts.bit_length()
    return facts

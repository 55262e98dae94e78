"""All that is remembered between steps, in one object.

Keys and values are plain data and programs. Neither graphs nor parameters are kept alive, and what
was not used for the longest time is forgotten.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lightning_jd.engines.tape.graph import LEAF, Edge, Graph, Record, records_of, table_version
from lightning_jd.engines.tape.owners import DataUse, Evidence
from lightning_jd.engines.tape.plan._plan import Plan, make_plan

_Value = TypeVar("_Value")
#: Plans for one graph, whose index tensors may differ from step to step.
_PLANS = 8
#: Integers up to here are dimensions, strides and options; larger ones are sizes and positions.
_EXACT = 8


class Recent(Generic[_Value]):
    """A table that keeps as many entries as its size, those that were used last."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[Hashable, _Value] = OrderedDict()

    def get(self, key: Hashable) -> _Value | None:
        """The entry for a key, if there is one."""
        found = self._entries.get(key)
        if found is not None:
            self._entries.move_to_end(key)
        return found

    def put(self, key: Hashable, value: _Value) -> _Value:
        """Remember an entry, and forget the one that was not used for the longest time."""
        self._entries[key] = value
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)
        return value


@dataclass
class Certificates:
    """The results of the certificates of one kind of graph in one model.

    Attributes:
        row_by_row: Parameters whose share of the Gramian, or whose gradient, was wrong.
        steps: Steps so far, by what a certificate is about.
    """

    row_by_row: frozenset[int] = frozenset()
    steps: Counter[Hashable] = field(default_factory=Counter)

    def is_due(self, delivery: Hashable, every: int) -> bool:
        """Whether the next step must be certified.

        Args:
            delivery: How gradients are delivered; each way is certified for itself.
            every: Steps between two certificates.
        """
        return self.steps[delivery] % every == 0


class Known:
    """What is known of one graph, sizes included, whatever the model.

    Attributes:
        kind: The same for graphs that differ in sizes only.
    """

    def __init__(
        self, records: tuple[Record, ...], roots: tuple[Edge, ...], rest: Hashable
    ) -> None:
        self._records, self._roots = records, roots
        self.kind: Hashable = _kind(records, roots), rest
        self._plans: Recent[Plan] = Recent(_PLANS)
        self._data = DataUse()

    def plan(
        self,
        graph: Graph,
        owners: int,
        row_by_row: frozenset[int] = frozenset(),
        evidence: type[Evidence] = Evidence,
    ) -> Plan:
        """The plan for a graph like this and the data of this step.

        Args:
            graph: The graph.
            owners: The number of owners of its results.
            row_by_row: Parameters that rules must not deal with.
            evidence: Finds owners where they depend on data.
        """
        used = self._data
        found = evidence(graph, owners) if used.read or used.crossed else None
        digest = None if found is None else found.digest(used)
        plan = self._plans.get((owners, row_by_row, digest))
        if plan is None:
            found = found or evidence(graph, owners)
            plan = make_plan(self._records, self._roots, found, row_by_row)
            found.note(used)
            digest = found.digest(used) if used.read or used.crossed else None
            self._plans.put((owners, row_by_row, digest), plan)
        return plan


class Memory:
    """What is known of graphs and models."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget everything."""
        self._graphs: Recent[Known] = Recent(64)
        self._certificates: Recent[Certificates] = Recent(256)

    def known(self, graph: Graph, types: Hashable) -> Known:
        """What is known of a graph."""
        rest = types, graph.types, table_version()
        key = graph.signature, graph.roots, rest
        found = self._graphs.get(key)
        return found or self._graphs.put(key, Known(records_of(graph.signature), graph.roots, rest))

    def certificates(self, known: Known, model: Hashable) -> Certificates:
        """The results of the certificates of graphs of a kind in one model."""
        key = known.kind, model
        return self._certificates.get(key) or self._certificates.put(key, Certificates())


memory = Memory()


def _kind(records: tuple[Record, ...], roots: tuple[Edge, ...]) -> int:
    """The same for graphs that differ in sizes only."""
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

"""What is remembered between steps: plans, and when a kind of graph was last certified.

Keys and values are plain data. Neither graphs nor parameters are kept alive, and both tables forget
what was not used for the longest time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lightning_jd.engines.tape._graph import LEAF, Edge, Record
from lightning_jd.engines.tape._owners import Owners
from lightning_jd.engines.tape._plan import Plan, make_plan
from lightning_jd.engines.tape.rules import version

_Value = TypeVar("_Value")


class Recent(Generic[_Value]):
    """A table of bounded size.

    Args:
        size: How many entries to keep.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[Hashable, _Value] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], _Value]) -> _Value:
        """The entry for a key; made if there is none."""
        found = self._entries.get(key)
        if found is None:
            found = self._entries[key] = make()
            if len(self._entries) > self._size:
                self._entries.popitem(last=False)
        else:
            self._entries.move_to_end(key)
        return found

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()


@dataclass
class Standing:
    """What certificates have shown about one kind of graph.

    Attributes:
        steps: How many steps it has been used for.
        demoted: Parameters whose share of the Gramian was wrong.
    """

    steps: int = 0
    demoted: frozenset[int] = frozenset()


@dataclass
class Known:
    """One graph, sizes included.

    Attributes:
        kind: The same for graphs that differ in sizes only.
        plans: A plan for each set of demoted parameters.
    """

    kind: Hashable
    plans: dict[frozenset[int], Plan] = field(default_factory=dict)


Roots = tuple[tuple[Edge, Owners], ...]
_known: Recent[Known] = Recent(64)
_standing: Recent[Standing] = Recent(256)


def known_graph(records: tuple[Record, ...], roots: tuple[Edge, ...], width: int) -> Known:
    """The entry of a graph.

    Args:
        records: The graph.
        roots: Where it begins.
        width: The number of owners.
    """
    return _known.get((records, roots, width), lambda: Known(_kind(records, roots)))


def plan_for(
    known: Known,
    records: tuple[Record, ...],
    roots: Roots,
    demoted: frozenset[int],
) -> Plan:
    """The plan of a graph, made when it is first asked for."""
    key = demoted | {-version()}
    plan = known.plans.get(key)
    if plan is None:
        plan = known.plans[key] = make_plan(records, roots, demoted)
    return plan


def standing_of(known: Known) -> Standing:
    """What certificates have shown about graphs of this kind."""
    return _standing.get((known.kind, version()), Standing)


def forget() -> None:
    """Forget all plans and certificates."""
    _known.clear()
    _standing.clear()


def _kind(records: tuple[Record, ...], roots: tuple[Edge, ...]) -> Hashable:
    return hash(
        (
            roots,
            tuple(
                (r.name, tuple(map(len, r.shapes)), r.inputs, r.facts if r.name == LEAF else None)
                for r in records
            ),
        )
    )

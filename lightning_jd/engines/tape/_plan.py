"""What to do with each parameter of a graph: a function of its records and of nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from lightning_jd.engines.tape._arrangement import Arrangement
from lightning_jd.engines.tape._graph import FOREIGN, LEAF, Edge, Record
from lightning_jd.engines.tape._order import lowest, parents_first, reaching_of
from lightning_jd.engines.tape._owners import Owners
from lightning_jd.engines.tape._survey import Survey
from lightning_jd.engines.tape._trunk import Trunk, find_trunk
from lightning_jd.engines.tape._units import Unit, Use, units_of


@dataclass(frozen=True)
class Plan:
    """The result of planning.

    Attributes:
        records: The graph.
        uses: All uses that contributions come from.
        units: What settles together.
        computed: Parameters that are reached through other computations on parameters.
        virtual: The uses of results of such computations.
        by_rows: Parameters for which one pass per objective is needed.
        reached: All tracked parameters that the losses depend on.
        culprits: The operation at which the owners of a parameter's uses got lost, if they did.
        order: The nodes, parents first.
        leaves: The node of each tracked parameter.
        sizes: How many numbers each result of an operation has, those of parameters alone aside.
        arrangements: Filled on demand: how the outputs of each use are sorted by owner.
        refused: Filled on the way: whether the rule for a use did not apply.
        number: Different for every plan.
    """

    records: tuple[Record, ...]
    uses: tuple[Use, ...]
    units: tuple[Unit, ...]
    computed: frozenset[int]
    virtual: tuple[int, ...]
    by_rows: frozenset[int]
    reached: frozenset[int]
    culprits: dict[int, str]
    order: tuple[int, ...]
    leaves: dict[int, int]
    sizes: dict[Edge, int]
    arrangements: dict[int, Arrangement | None] = field(default_factory=dict)
    refused: dict[int, bool] = field(default_factory=dict)
    number: int = field(default_factory=itertools.count().__next__)
    _trunks: dict[tuple[Edge, ...], Trunk | None] = field(default_factory=dict)
    _ends: dict[frozenset[int], list[Edge]] = field(default_factory=dict)

    @cached_property
    def activations(self) -> int:
        """How many numbers all results of operations have."""
        return sum(self.sizes.values())

    def trunk(self, roots: tuple[Edge, ...]) -> Trunk | None:
        """What the losses at these roots share, if they are tasks with heads."""
        if roots not in self._trunks:
            self._trunks[roots] = find_trunk(self.records, self.order, roots)
        return self._trunks[roots]

    def ends_of(self, nodes: Collection[int]) -> list[Edge]:
        """The outputs of those of some nodes that have no other of them below."""
        key = frozenset(nodes)
        if key not in self._ends:
            self._ends[key] = [
                Edge(node, output)
                for node in sorted(lowest(self.records, self.order, key))
                for output in range(len(self.records[node].shapes))
            ]
        return self._ends[key]


def make_plan(
    records: tuple[Record, ...],
    roots: Sequence[tuple[Edge, Owners]],
    demoted: Collection[int] = (),
) -> Plan:
    """Follow the owners from the losses down to the parameters.

    Args:
        records: The graph.
        roots: The outputs that are differentiated, with their owners.
        demoted: Parameters that must not be claimed.
    """
    order = parents_first(records, [edge.node for edge, _ in roots])
    reaching = reaching_of(records, order)
    survey = Survey(records, reaching)
    for edge, owners in roots:
        survey.arrive(edge, owners)
    for node in order:
        if node in reaching and records[node].name != LEAF:
            survey.cross(node)
    return _sorted_out(survey, frozenset(demoted), order)


def _sorted_out(
    survey: Survey,
    demoted: frozenset[int],
    order: tuple[int, ...],
) -> Plan:
    records = survey.records
    by_rows = demoted | survey.opaque
    reached = {records[node].facts for node in survey.reaching if records[node].name == LEAF}
    computed = survey.computed - by_rows
    placed = [use for use in survey.uses if use.placements[0].parameter not in by_rows]
    uses, units = units_of(placed, computed, records)
    virtual: list[int] = []
    if computed:
        virtual = list(range(len(uses), len(uses) + len(survey.virtual)))
        uses += survey.virtual
    return Plan(
        records=records,
        uses=tuple(uses),
        units=tuple(units),
        computed=frozenset(computed),
        virtual=tuple(virtual),
        by_rows=frozenset(by_rows & reached),
        reached=frozenset(reached),  # type: ignore[arg-type]  # facts of a leaf are a position
        culprits=survey.culprits,
        order=order,
        leaves={
            record.facts: node
            for node, record in enumerate(records)
            if record.name == LEAF and isinstance(record.facts, int) and record.facts != FOREIGN
        },
        sizes={edge: prod(records[edge.node].shapes[edge.output]) for edge in survey.states},
    )

"""What happens to each parameter of a graph, and all that is remembered of it between steps."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Container, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, Generic, TypeVar

import numpy as np

from lightning_jd.engines.tape.graph import (
    LEAF,
    Edge,
    Graph,
    Record,
    lowest,
    reaching_of,
    records_of,
    table_version,
)
from lightning_jd.engines.tape.owners import (
    Arrangement,
    DataUse,
    Evidence,
    Owners,
    in_order,
    single_owner,
)
from lightning_jd.engines.tape.plan._survey import Survey, Unit, Use, units_of
from lightning_jd.engines.tape.rules import RuleEntry, rule_at


@dataclass(eq=False)
class Plan:
    """The result of planning, and what steps with it have shown.

    Attributes:
        records: The graph.
        uses: All uses that contributions come from.
        units: What settles together.
        arrangements: Of each use, what sorts the output of its node by owner; ``None`` if the rule
            for it cannot deal with the outputs that are used.
        computed: Parameters that are reached through other computations on parameters.
        virtual: The uses of results of such computations.
        by_rows: Parameters for which one pass per objective is needed.
        reached: All tracked parameters that the losses depend on.
        lost_at: The operation at which the owners of a parameter's uses got lost, if they did.
        activations: How many numbers all results of operations have, those of parameters alone
            aside.
        sparse: Parameters whose gradients autograd would make sparse, as tables of embeddings.
        refused: Whether the rule for a use did not apply, by position; filled by steps.
        node_order: The operations in the order in which a pass met them: a program adds up in the
            same order, so that it rounds as rules do.
        steps: How many steps were not replayed.
        program: The program that was traced last, if any.
        is_traceable: Whether there may be one: nothing depends on the values of tensors.
    """

    records: tuple[Record, ...]
    uses: tuple[Use, ...]
    units: tuple[Unit, ...]
    arrangements: tuple[Arrangement | None, ...]
    computed: frozenset[int]
    virtual: tuple[int, ...]
    by_rows: frozenset[int]
    reached: frozenset[int]
    lost_at: dict[int, str]
    activations: int
    sparse: frozenset[int]
    refused: dict[int, bool] = field(default_factory=dict)
    node_order: list[int] = field(default_factory=list)
    steps: int = 0
    program: Any = None
    is_traceable: bool = True

    def paths(self, local: Container[int] = ()) -> dict[int, str]:
        """How the parameters are dealt with in the pass for all instances.

        Args:
            local: The positions of uses without an applicable rule.
        """
        paths: dict[int, str] = {}
        for position, use in enumerate(self.uses):
            how = "local" if position in local else "rule"
            for placement in use.placements:
                if paths.get(placement.parameter, "rule").startswith("rule"):
                    paths[placement.parameter] = f"{how} {self.records[use.node].name}"
        return paths

    @cached_property
    def rule_paths(self) -> dict[int, str]:
        """:meth:`paths`, if there is a rule for every use."""
        return self.paths()

    def rule(self, use: Use) -> RuleEntry:
        """The rule for a use; one without a function if there is none."""
        return rule_at(self.records[use.node].name, use.slots[0])

    @cached_property
    def by_node(self) -> dict[int, tuple[int, ...]]:
        """The positions of the uses of each operation."""
        found: dict[int, tuple[int, ...]] = {}
        for position, use in enumerate(self.uses):
            found[use.node] = (*found.get(use.node, ()), position)
        return found

    @cached_property
    def outputs(self) -> tuple[Edge, ...]:
        """The outputs of all operations that use a parameter."""
        return self._outputs(self.by_node)

    @cached_property
    def lowest_outputs(self) -> tuple[Edge, ...]:
        """Outputs of the lowest operations that use a parameter: no other one is below them."""
        return self._outputs(lowest(self.records, self.by_node))

    def _outputs(self, nodes: Iterable[int]) -> tuple[Edge, ...]:
        return tuple(
            Edge(node, output)
            for node in sorted(nodes)
            for output in range(len(self.records[node].shapes))
        )


def make_plan(
    records: tuple[Record, ...],
    roots: Sequence[Edge],
    evidence: Evidence,
    row_by_row: frozenset[int] = frozenset(),
) -> Plan:
    """Follow the owners from the losses down to the parameters.

    Args:
        records: The graph.
        roots: The outputs that are differentiated.
        evidence: Finds owners where they depend on data.
        row_by_row: Parameters that rules must not deal with.
    """
    reaching = reaching_of(records)
    survey = Survey(records, reaching, evidence)
    for edge in roots:
        survey.arrive(edge, single_owner() if evidence.m == 1 else in_order(evidence.m))
    for node, record in enumerate(records):
        if node in reaching and record.name != LEAF:
            survey.cross(node)
    mixed = {k for use in survey.uses if use.owners is None for k in use.parameters}
    losses = {records[edge.node].parameter for edge in roots}
    by_rows = row_by_row | survey.opaque | mixed | losses
    found = {records[node].parameter for node in reaching}
    reached = frozenset(k for k in found if k is not None)
    computed = survey.computed - by_rows
    placed = [use for use in survey.uses if use.placements[0].parameter not in by_rows]
    uses, units = units_of(placed, computed, records)
    virtual: tuple[int, ...] = ()
    if computed:
        virtual = tuple(range(len(uses), len(uses) + len(survey.virtual)))
        uses += survey.virtual
    return Plan(
        records=records,
        uses=tuple(uses),
        units=tuple(units),
        arrangements=tuple([_arrangement(use, records, evidence.m) for use in uses]),
        computed=frozenset(computed),
        virtual=virtual,
        by_rows=reached & by_rows,
        reached=reached,
        lost_at=survey.lost_at,
        activations=sum(prod(records[e.node].shapes[e.output]) for e in survey.states),
        sparse=_sparse(survey),
    )


def _arrangement(use: Use, records: Sequence[Record], m: int) -> Arrangement | None:
    assert use.owners is not None
    read = rule_at(records[use.node].name, use.slots[0]).outputs
    used = {k: owners for k, owners in enumerate(use.owners) if owners is not None}
    if not used or max(used) >= read:
        return None
    output, first = next(iter(used.items()))
    if any(not np.array_equal(owners.ids, first.ids) for owners in used.values()):
        return None
    if first.axis is None:
        if not (shape := records[use.node].shapes[output]):
            return None
        first = Owners(0, np.repeat(first.ids, shape[0]))
    return Arrangement(first, m)


def _sparse(survey: Survey) -> frozenset[int]:
    """Parameters that are used by operations with the option ``sparse=True`` only."""
    ways: dict[int, set[bool]] = {}
    for use in survey.uses:
        record = survey.records[use.node]
        facts = record.facts if isinstance(record.facts, tuple) else ()
        is_sparse = record.name.startswith("Embedding") and facts[:1] == (True,)
        for parameter in use.parameters:
            ways.setdefault(parameter, set()).add(is_sparse)
    return frozenset(parameter for parameter, found in ways.items() if found == {True})


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

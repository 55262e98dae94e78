"""What to do with each parameter of a graph: a function of its records and of nothing else."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import prod

from lightning_jd.engines.tape._arrangement import Arrangement
from lightning_jd.engines.tape._graph import COMPLEX, FOREIGN, LEAF, Edge, Record
from lightning_jd.engines.tape._owners import Owners, joined
from lightning_jd.engines.tape._placement import Placement, overlap, place
from lightning_jd.engines.tape._trunk import Trunk, find_trunk
from lightning_jd.engines.tape.flow import REDUCED, Crossing, flow_of
from lightning_jd.engines.tape.rules import bias_slot_of


class Zone(Enum):
    """What is known of the gradients at an output of a node, other than its owners."""

    SHARED = "a function of parameters only, consumed by operations with known owners"
    UNPROVEN = "the owners are not known, or there are none"


State = Owners | Zone
#: Compiled code: its operations are not visible.
OPAQUE = "CompiledFunctionBackward"


@dataclass(frozen=True)
class Use:
    """A parameter (or a weight and its bias) that an operation consumes.

    Attributes:
        node: The position of the node.
        slots: The inputs of the node.
        placements: Where these inputs are in their parameters. A negative parameter is a tensor
            that is computed from parameters, such as a normalised weight.
        owners: The owners of the outputs of the node; ``None`` if they must be probed.
        edge: Where the consumed tensor comes from.
    """

    node: int
    slots: tuple[int, ...]
    placements: tuple[Placement, ...]
    owners: Sequence[Owners | None] | None
    edge: Edge


@dataclass(frozen=True)
class Unit:
    """Uses whose gradients add up before any product, as all uses of a tied weight do.

    Attributes:
        parameters: The parameters that the uses share.
        uses: Positions in :attr:`Plan.uses`.
    """

    parameters: tuple[int, ...]
    uses: tuple[int, ...]


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
        activations: How many numbers the results of all operations are, parameters aside.
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
    activations: int
    arrangements: dict[int, Arrangement | None] = field(default_factory=dict)
    refused: dict[int, bool] = field(default_factory=dict)
    number: int = field(default_factory=itertools.count().__next__)
    _trunks: dict[tuple[Edge, ...], Trunk | None] = field(default_factory=dict)
    _ends: dict[frozenset[int], list[Edge]] = field(default_factory=dict)

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
    reaching = _reaching(records, order)
    survey = _Survey(records, reaching)
    for edge, owners in roots:
        survey.arrive(edge, owners)
    for node in order:
        if node in reaching and records[node].name != LEAF:
            survey.cross(node)
    return _sorted_out(survey, frozenset(demoted), order)


def parents_first(records: Sequence[Record], roots: Sequence[int]) -> tuple[int, ...]:
    """All nodes below the roots, each after every node that depends on it."""
    waiting = [0] * len(records)
    for record in records:
        for child in record.inputs:
            if child is not None:
                waiting[child.node] += 1
    ready = [node for node in dict.fromkeys(roots) if waiting[node] == 0]
    order: list[int] = []
    while ready:
        node = ready.pop()
        order.append(node)
        for child in records[node].inputs:
            if child is not None:
                waiting[child.node] -= 1
                if waiting[child.node] == 0:
                    ready.append(child.node)
    return tuple(order)


def _reaching(records: Sequence[Record], order: Sequence[int]) -> set[int]:
    """The nodes that some tracked parameter is below, and these parameters."""
    reaching: set[int] = set()
    for node in reversed(order):
        record = records[node]
        if record.name == LEAF:
            if record.facts != FOREIGN:
                reaching.add(node)
        elif any(child is not None and child.node in reaching for child in record.inputs):
            reaching.add(node)
    return reaching


def lowest(records: Sequence[Record], order: Sequence[int], nodes: Collection[int]) -> set[int]:
    """Those of some nodes that have no other of them below.

    Args:
        records: The graph.
        order: All nodes, parents first.
        nodes: The nodes in question.
    """
    above: set[int] = set()  # nodes with one of the nodes at or below them
    found: set[int] = set()
    for node in reversed(order):
        has_below = any(child is not None and child.node in above for child in records[node].inputs)
        if node in nodes and not has_below:
            found.add(node)
        if node in nodes or has_below:
            above.add(node)
    return found


class _Survey:
    """Crosses the graph and notes every use of a parameter."""

    def __init__(self, records: tuple[Record, ...], reaching: set[int]) -> None:
        self.records, self.reaching = records, reaching
        self.states: dict[Edge, State] = {}
        self.uses: list[Use] = []
        self.virtual: list[Use] = []
        self.computed: set[int] = set()
        self.culprits: dict[int, str] = {}
        self._lost_at: dict[int, str] = {}
        self.opaque: set[int] = set()

    def arrive(self, edge: Edge, state: State) -> None:
        """Note one more path by which gradients come to an output of a node."""
        before = self.states.get(edge)
        if before is None:
            self.states[edge] = state
        elif isinstance(before, Owners) and isinstance(state, Owners):
            self.states[edge] = joined(before, state) or Zone.UNPROVEN
        elif before is not state:
            self.states[edge] = Zone.UNPROVEN

    def cross(self, node: int) -> None:
        """Carry what is known at the outputs of a node over to its inputs."""
        record = self.records[node]
        states = [self.states.get(Edge(node, k)) for k in range(len(record.shapes))]
        if all(state is None for state in states):
            return  # between a parameter and its use
        if all(state in (None, Zone.SHARED) for state in states):
            for edge in self._children(record):
                self._share(edge)
            return
        owners = _owners(states)
        lost_at = None if owners is not None else self._lost_at.get(node, "several paths")
        if record.name == OPAQUE or record.name.startswith(COMPLEX):
            self._give_up(record)
            return
        flowed = [None] * len(record.inputs) if owners is None else self._flow(record, owners)
        for slot, child in enumerate(record.inputs):
            if child is None or child.node not in self.reaching:
                continue
            if (placement := place(self.records, child)) is not None:
                self.uses.append(Use(node, (slot,), (placement,), owners, child))
                if lost_at is not None:
                    self.culprits[placement.parameter] = lost_at
            elif flowed[slot] is REDUCED:
                shape = self.records[child.node].shapes[child.output]
                result = Placement(-1 - len(self.virtual), prod(shape), shape)
                self.virtual.append(Use(node, (slot,), (result,), owners, child))
                self.arrive(child, Zone.SHARED)
            else:
                flow = flowed[slot]
                if not isinstance(flow, Owners):
                    self._lost_at.setdefault(child.node, lost_at or record.name)
                self.arrive(child, flow if isinstance(flow, Owners) else Zone.UNPROVEN)

    def _children(self, record: Record) -> list[Edge]:
        return [c for c in record.inputs if c is not None and c.node in self.reaching]

    def _share(self, child: Edge) -> None:
        record = self.records[child.node]
        if record.name == LEAF:
            assert isinstance(record.facts, int)
            self.computed.add(record.facts)
        else:
            self.arrive(child, Zone.SHARED)

    def _give_up(self, record: Record) -> None:
        for child in self._children(record):
            below = self.records[child.node]
            if below.name == LEAF:
                assert isinstance(below.facts, int)
                self.opaque.add(below.facts)
                self.culprits[below.facts] = record.name
            else:
                self._lost_at.setdefault(child.node, record.name)
                self.arrive(child, Zone.UNPROVEN)

    def _flow(self, record: Record, owners: Sequence[Owners | None]) -> Sequence[object]:
        shapes = [
            None if child is None else self.records[child.node].shapes[child.output]
            for child in record.inputs
        ]
        facts = record.facts if isinstance(record.facts, tuple) else ()
        return flow_of(record.name, Crossing(owners, record.shapes, shapes, facts))


def _owners(states: Sequence[State | None]) -> list[Owners | None] | None:
    if any(isinstance(state, Zone) for state in states):
        return None
    return [state if isinstance(state, Owners) else None for state in states]


def _sorted_out(
    survey: _Survey,
    demoted: frozenset[int],
    order: tuple[int, ...],
) -> Plan:
    records = survey.records
    by_rows = demoted | survey.opaque
    reached = {records[node].facts for node in survey.reaching if records[node].name == LEAF}
    computed = survey.computed - by_rows
    placed = [use for use in survey.uses if use.placements[0].parameter not in by_rows]
    uses, units = _units(placed, computed, records)
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
        activations=sum(prod(records[edge.node].shapes[edge.output]) for edge in survey.states),
    )


def _units(
    placed: Sequence[Use], computed: Collection[int], records: Sequence[Record]
) -> tuple[list[Use], list[Unit]]:
    by_parameter: dict[int, list[Use]] = defaultdict(list)
    for use in placed:
        by_parameter[use.placements[0].parameter].append(use)
    fused = _fused(by_parameter, computed, records)
    uses: list[Use] = []
    units: list[Unit] = []

    def add(parameters: tuple[int, ...], together: Sequence[Use]) -> None:
        first = len(uses)
        uses.extend(together)
        units.append(Unit(parameters, tuple(range(first, len(uses)))))

    biases = {bias for bias, _ in fused.values()}
    for parameter, together in by_parameter.items():
        if parameter in biases:
            continue
        if parameter in fused:
            bias, pairs = fused[parameter]
            add((parameter, bias), pairs)
        elif parameter in computed or overlap([use.placements[0] for use in together]):
            add((parameter,), together)
        else:
            for use in together:
                add((parameter,), [use])
    return uses, units


def _fused(
    by_parameter: dict[int, list[Use]], computed: Collection[int], records: Sequence[Record]
) -> dict[int, tuple[int, list[Use]]]:
    """Weights whose every use comes with the same bias, which is used nowhere else."""
    fused: dict[int, tuple[int, list[Use]]] = {}
    taken: set[int] = set()
    at = {(use.node, use.slots[0]): use for uses in by_parameter.values() for use in uses}
    for weight, uses in by_parameter.items():
        pairs: list[Use] = []
        biases: set[int] = set()
        for use in uses:
            slot = bias_slot_of(records[use.node].name, use.slots[0])
            partner = None if slot is None else at.get((use.node, slot))
            if partner is None or partner.placements[0].where is not None:
                break
            both = use.placements + partner.placements
            pairs.append(Use(use.node, use.slots + partner.slots, both, use.owners, use.edge))
            biases.add(partner.placements[0].parameter)
        if len(pairs) != len(uses) or len(biases) != 1:
            continue
        (bias,) = biases
        free = bias != weight and bias not in taken and not {bias, weight} & set(computed)
        whole = len(uses) == 1 or all(use.placements[0].where is None for use in uses)
        if free and whole and len(by_parameter[bias]) == len(uses):
            fused[weight] = (bias, pairs)
            taken |= {bias, weight}
    return fused

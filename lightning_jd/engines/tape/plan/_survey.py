"""Follows the owners from the losses down, and sorts the uses of parameters that it meets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from math import prod

from lightning_jd.engines.tape.graph import NESTED, Edge, Placement, Record, overlap, place
from lightning_jd.engines.tape.owners import Crossed, Evidence, Owners, joined
from lightning_jd.engines.tape.owners.flow import REDUCED, Crossing, flow_of
from lightning_jd.engines.tape.rules import rule_at


@dataclass(frozen=True)
class Use:
    """A parameter (or a weight and its bias) that an operation consumes.

    Attributes:
        node: The position of the node.
        slots: The inputs of the node.
        placements: Where these inputs are in their parameters. A negative parameter is a tensor
            that is computed from parameters, such as a normalised weight.
        owners: The owners of the outputs of the node; ``None`` if slices are mixed.
        edge: Where the consumed tensor comes from.
    """

    node: int
    slots: tuple[int, ...]
    placements: tuple[Placement, ...]
    owners: Sequence[Owners | None] | None
    edge: Edge

    @property
    def parameters(self) -> set[int]:
        """The parameters of the placements."""
        return {placement.parameter for placement in self.placements}


@dataclass(frozen=True)
class Unit:
    """Uses whose gradients add up before any product, as all uses of a tied weight do.

    Attributes:
        parameters: The parameters that the uses share.
        uses: Positions in :attr:`Plan.uses`.
    """

    parameters: tuple[int, ...]
    uses: tuple[int, ...]


def units_of(
    placed: Sequence[Use], computed: Collection[int], records: Sequence[Record]
) -> tuple[list[Use], list[Unit]]:
    """All uses in a new order, and the units that they belong to."""
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
            slot = rule_at(records[use.node].name, use.slots[0]).bias
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


class Zone(Enum):
    """What is known of the gradients at an output of a node, other than its owners."""

    SHARED = "a function of parameters only, consumed by operations with known owners"
    UNPROVEN = "the owners are not known, or there are none"


State = Owners | Zone
#: Operations about which nothing is known: compiled code, which hides its own, and nested tensors.
OPAQUE = {"CompiledFunctionBackward", NESTED}


class Survey:
    """Crosses the graph and notes every use of a parameter."""

    def __init__(self, records: tuple[Record, ...], reaching: set[int], evidence: Evidence) -> None:
        self.records, self.reaching = records, reaching
        self._evidence = evidence
        self.states: dict[Edge, State] = {}
        self.uses: list[Use] = []
        self.virtual: list[Use] = []
        self.computed: set[int] = set()
        #: Where the owners of the uses of a parameter got lost, and those of a node.
        self.lost_at: dict[int, str] = {}
        self._lost_above: dict[int, str] = {}
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
        """Conclude from the states of the outputs of a node those of its inputs."""
        record = self.records[node]
        states = [self.states.get(Edge(node, k)) for k in range(len(record.shapes))]
        if all(state is None for state in states):
            return  # between a parameter and its use
        if all(state in (None, Zone.SHARED) for state in states):
            for edge in self._children(record):
                if (parameter := self.records[edge.node].parameter) is not None:
                    self.computed.add(parameter)
                else:
                    self.arrive(edge, Zone.SHARED)
            return
        owners = _owners(states)
        lost_at = None if owners is not None else self._lost_above.get(node, "several paths")
        if record.name in OPAQUE:
            self._give_up(record)
            return
        flowed = [None] * len(record.inputs) if owners is None else self._flow(node, owners)
        for slot, child in enumerate(record.inputs):
            if child is None or child.node not in self.reaching:
                continue
            if (placement := place(self.records, child)) is not None:
                self.uses.append(Use(node, (slot,), (placement,), owners, child))
                if lost_at is not None:
                    self.lost_at[placement.parameter] = lost_at
            elif flowed[slot] is REDUCED:
                shape = self.records[child.node].shapes[child.output]
                result = Placement(-1 - len(self.virtual), prod(shape), shape)
                self.virtual.append(Use(node, (slot,), (result,), owners, child))
                self.arrive(child, Zone.SHARED)
            elif isinstance(flow := flowed[slot], Owners):
                self.arrive(child, flow)
            else:
                self._lose(child, lost_at or record.name)

    def _children(self, record: Record) -> list[Edge]:
        return [c for c in record.inputs if c is not None and c.node in self.reaching]

    def _give_up(self, record: Record) -> None:
        for child in self._children(record):
            if (parameter := self.records[child.node].parameter) is not None:
                self.opaque.add(parameter)
                self.lost_at[parameter] = record.name
            else:
                self._lose(child, record.name)

    def _lose(self, child: Edge, operation: str) -> None:
        self._lost_above.setdefault(child.node, operation)
        self.arrive(child, Zone.UNPROVEN)

    def _flow(self, node: int, owners: Sequence[Owners | None]) -> Sequence[object]:
        record = self.records[node]
        shapes = [
            None if child is None else self.records[child.node].shapes[child.output]
            for child in record.inputs
        ]
        facts = record.facts if isinstance(record.facts, tuple) else ()
        read = partial(self._evidence.indices.of, node)
        flowed = flow_of(record.name, Crossing(owners, record.shapes, shapes, facts, read))
        unproven = [
            shape if flow is None and self._matters(child) else None
            for flow, shape, child in zip(flowed, shapes, record.inputs, strict=True)
        ]
        if all(shape is None for shape in unproven):
            return flowed
        found = self._evidence.below(node, Crossed(tuple(owners), tuple(unproven)))
        if found is None:
            return flowed
        return [flow or below for flow, below in zip(flowed, found, strict=True)]

    def _matters(self, child: Edge | None) -> bool:
        """Whether owners must be known at an input: it is no parameter, nor nested."""
        if child is None or child.node not in self.reaching:
            return False
        return self.records[child.node].name != NESTED and place(self.records, child) is None


def _owners(states: Sequence[State | None]) -> list[Owners | None] | None:
    if any(isinstance(state, Zone) for state in states):
        return None
    return [state if isinstance(state, Owners) else None for state in states]

"""Follows the owners from the losses down, and notes every use of a parameter."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import partial
from math import prod

from lightning_jd.engines.tape.graph import LEAF, NESTED, Edge, Placement, Record, place
from lightning_jd.engines.tape.owners import Crossed, Evidence, Owners, joined
from lightning_jd.engines.tape.owners.flow import REDUCED, Crossing, flow_of
from lightning_jd.engines.tape.plan._uses import Use


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
        """Carry what is known at the outputs of a node over to its inputs."""
        record = self.records[node]
        states = [self.states.get(Edge(node, k)) for k in range(len(record.shapes))]
        if all(state is None for state in states):
            return  # between a parameter and its use
        if all(state in (None, Zone.SHARED) for state in states):
            for edge in self._children(record):
                if (parameter := self._parameter(edge)) is not None:
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

    def _parameter(self, edge: Edge) -> int | None:
        record = self.records[edge.node]
        return record.facts if record.name == LEAF and isinstance(record.facts, int) else None

    def _give_up(self, record: Record) -> None:
        for child in self._children(record):
            if (parameter := self._parameter(child)) is not None:
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

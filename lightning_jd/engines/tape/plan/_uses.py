"""Uses of parameters, and which of them settle together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lightning_jd.engines.tape.graph import Edge, Placement, Record, overlap
from lightning_jd.engines.tape.owners import Owners
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

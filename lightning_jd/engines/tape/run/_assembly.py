"""Collects the contributions of all uses of a parameter, which must add up before any product."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_jd.engines.tape.contributions import Contribution, merge
from lightning_jd.engines.tape.plan import Plan, Unit
from lightning_jd.engines.tape.run._ledger import Ledger


class Assembly:
    """Passes units on to the ledger as soon as all their uses have been delivered."""

    def __init__(self, plan: Plan, ledger: Ledger) -> None:
        self._ledger = ledger
        self._unit_of: dict[int, Unit] = {}
        for unit in plan.units:
            if plan.computed.isdisjoint(unit.parameters):
                for position in unit.uses:
                    self._unit_of[position] = unit
        self._waiting: dict[Unit, dict[int, list[Contribution]]] = {}
        #: Contributions of uses that belong to no unit here, by position.
        self.others: dict[int, list[Contribution]] = {}

    def deliver(self, position: int, parts: list[Contribution]) -> None:
        """Take the contributions of one use."""
        unit = self._unit_of.get(position)
        if unit is None:
            self.others[position] = parts
        elif len(unit.uses) == 1:
            self._settle([parts])
        else:
            received = self._waiting.setdefault(unit, {})
            received[position] = parts
            if len(received) == len(unit.uses):
                self._settle(list(self._waiting.pop(unit).values()))

    def close(self) -> None:
        """Settle the units of which some uses received no gradient."""
        while self._waiting:
            _, received = self._waiting.popitem()
            self._settle(list(received.values()))

    def _settle(self, uses: Sequence[list[Contribution]]) -> None:
        if all(len(parts) == 1 for parts in uses):
            first, *others = [parts[0] for parts in uses]
            together = first.merged(others) if others else first
            if together is not None:
                self._ledger.add(together)
                return
        by_parameter: dict[int, list[Contribution]] = {}
        for parts in uses:
            for part in parts:
                for single in part.split():
                    by_parameter.setdefault(single.placements[0].parameter, []).append(single)
        for parts in by_parameter.values():
            self._ledger.add(merge(parts))

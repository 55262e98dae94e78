"""Turns the gradients that a pass meets into contributions, use by use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lightning_jd.engines._objectives import is_one
from lightning_jd.engines.tape.contributions import Contribution, Rows
from lightning_jd.engines.tape.graph import Graph
from lightning_jd.engines.tape.plan import Plan, Use
from lightning_jd.engines.tape.rules import NotApplicableError, Site, rule_at
from lightning_jd.engines.tape.run._capture import Cotangents, read_ahead, run
from lightning_jd.engines.tape.run._without_rule import broadcast_once, local_rows
from lightning_jd.errors import GraphError

#: Takes the position of a use and its contributions: one, or one per slot.
Deliver = Callable[[int, list[Contribution]], None]


class Interpreter:
    """Runs the rules of a plan, in the order in which a pass meets their operations."""

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        m: int,
        dtype: torch.dtype,
        scale: float | Tensor,
    ) -> None:
        self.graph, self.plan, self.records = graph, plan, plan.records
        self.m, self.dtype, self.scale = m, dtype, scale
        self.refused = plan.refused
        #: Reads what the node of a use has saved, where that must not be read from the graph.
        self.read: Callable[[int, str], Any] | None = None
        #: What rules see in place of every node, where they must not look at nodes.
        self.node: Any = None
        #: Positions of uses without an applicable rule, whose operation is differentiated alone.
        self.local: set[int] = set()

    def run(
        self,
        losses: Tensor,
        weights: Tensor,
        deliver: Deliver,
        *,
        retain_graph: bool = True,
    ) -> None:
        """One pass.

        Args:
            losses: The losses.
            weights: Their weights; the scale is applied here.
            deliver: Called once per use that receives a gradient.
            retain_graph: Whether the graph is kept. If not, all uses must have a rule that has
                accepted them before, and no saved tensor may have a hook.
        """
        fetched = read_ahead(
            (use.node, self.graph.nodes[use.node], self._saved_names(use)) for use in self.plan.uses
        )
        if fetched:
            self.read = partial(self._fetched_or_saved, fetched)
        later: list[tuple[list[int], Cotangents]] = []
        order = self.plan.node_order = []

        def consume(node: int, cotangents: Cotangents) -> None:
            order.append(node)
            refused = self.consume(node, cotangents, deliver)
            if refused and not retain_graph:
                raise _changed_its_mind(self.records[node].name)
            if refused:
                # it runs the node, which must not happen inside of the pass: saved tensors of
                # checkpoints are given out once per pass
                later.append((refused, self._unscaled(cotangents)))

        run(
            self.graph,
            losses,
            weights * self.scale,
            self.plan.by_node,
            self.plan.lowest_outputs,
            consume,
            retain_graph=retain_graph,
        )
        self._consume_later(later, deliver)

    def interpret(self, cotangents: Mapping[int, Cotangents], deliver: Deliver) -> None:
        """Deliver the contributions of all uses, after a pass that has captured all gradients."""
        later = [
            (refused, self._unscaled(several))
            for node, several in cotangents.items()
            if (refused := self.consume(node, several, deliver))
        ]
        self._consume_later(later, deliver)

    def _consume_later(self, later: list[tuple[list[int], Cotangents]], deliver: Deliver) -> None:
        while later:
            for position, parts in self._locally(*later.pop()).items():
                deliver(position, parts)

    def consume(self, node: int, cotangents: Cotangents, deliver: Deliver) -> list[int]:
        """Deliver the contributions of the uses of one operation.

        Returns:
            The uses without an applicable rule.
        """
        if all(cotangent is None for cotangent in cotangents):
            return []
        cotangents = self._unscaled(cotangents)
        refused = []
        results: dict[Any, Any] = {}
        for position in self.plan.by_node[node]:
            part = self._by_rule(position, cotangents, results)
            self.refused[position] = part is None
            if part is None:
                refused.append(position)
            else:
                deliver(position, [part])
        return refused

    def _fetched_or_saved(
        self, fetched: Mapping[int, Mapping[str, Any]], node: int, name: str
    ) -> Any:
        found = fetched.get(node, {})
        return found[name] if name in found else getattr(self.graph.nodes[node], "_saved_" + name)

    def _saved_names(self, use: Use) -> tuple[str, ...]:
        return rule_at(self.records[use.node].name, use.slots[0]).saved

    def _unscaled(self, cotangents: Cotangents) -> Cotangents:
        if is_one(self.scale):
            return cotangents
        return tuple([None if D is None else self._cast(D) / self.scale for D in cotangents])

    def _cast(self, D: Tensor) -> Tensor:
        return D.to(self.dtype.to_complex() if D.is_complex() else self.dtype)

    def _site(
        self,
        position: int,
        cotangents: Cotangents,
        slots: Sequence[int] | None = None,
        results: dict[Any, Any] | None = None,
    ) -> Site:
        use = self.plan.uses[position]
        chosen = range(len(use.slots)) if slots is None else slots
        return Site(
            node=self.graph.nodes[use.node] if self.node is None else self.node,
            slots=tuple([use.slots[j] for j in chosen]),
            cotangents=cotangents,
            arrangement=self.plan.arrangements[position],
            placements=tuple([use.placements[j] for j in chosen]),
            dtype=self.dtype,
            read=None if self.read is None else partial(self.read, use.node),
            results={} if results is None else results,
        )

    def _by_rule(
        self, position: int, cotangents: Cotangents, results: dict[Any, Any]
    ) -> Contribution | None:
        use = self.plan.uses[position]
        rule = rule_at(self.records[use.node].name, use.slots[0]).function
        if rule is None or self.plan.arrangements[position] is None:
            return None
        if cotangents[0] is not None and cotangents[0].is_complex():
            return None  # rules are about real numbers
        site = self._site(position, cotangents, results=results)
        try:
            found = rule(site)
        except NotApplicableError:
            return None
        return found if isinstance(found, Contribution) else Rows(found, site.placements[0])

    def _locally(
        self, positions: Sequence[int], cotangents: Cotangents
    ) -> dict[int, list[Contribution]]:
        """The contributions of some uses of one node, slot by slot."""
        first = self.plan.uses[positions[0]]
        record, owners = self.records[first.node], first.owners
        assert owners is not None
        sites = [
            (position, self._site(position, cotangents, [j]))
            for position in positions
            for j in range(len(self.plan.uses[position].slots))
        ]
        parts = [broadcast_once(site, record) for _, site in sites]
        alone = [k for k, part in enumerate(parts) if part is None]
        if alone:
            found = local_rows([sites[k][1] for k in alone], owners, self.m)
            for k, rows in zip(alone, found, strict=True):
                parts[k] = rows
                self.local.add(sites[k][0])
        by_use: dict[int, list[Contribution]] = {}
        for (position, _), part in zip(sites, parts, strict=True):
            assert part is not None
            by_use.setdefault(position, []).append(part)
        return by_use


def _changed_its_mind(operation: str) -> GraphError:
    return GraphError(
        "A rule must accept or refuse an operation by its sizes, got one that has accepted "
        f"{operation!r} before and refuses it now, while the graph is being freed. Pass "
        "`retain_graph=True`, or let the rule always refuse."
    )

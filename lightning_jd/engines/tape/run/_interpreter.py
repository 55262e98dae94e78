"""Turns the gradients that a pass meets into contributions: by a rule, or without one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from lightning_jd.engines._columns import to_columns
from lightning_jd.engines._hooks import hooks_silenced
from lightning_jd.engines._objectives import is_one
from lightning_jd.engines.tape.contributions import Contribution, Rows
from lightning_jd.engines.tape.graph import (
    Cotangents,
    Graph,
    Placement,
    Record,
    Shape,
    local_vjp,
    read_ahead,
    run_pass,
)
from lightning_jd.engines.tape.owners import Owners
from lightning_jd.engines.tape.owners.flow import is_elementwise
from lightning_jd.engines.tape.plan import Plan, Use
from lightning_jd.engines.tape.rules import NotApplicableError, Site, rule_at, sum_of_broadcast
from lightning_jd.errors import GraphError


def broadcast_once(site: Site, record: Record) -> Contribution | None:
    """The gradients of all objectives at an input of an elementwise operation.

    Autograd sums a gradient to the shape of the input only after the operation, so one call gives
    the summands; they are then summed per owner.

    Returns:
        ``None`` if the operation is no such operation.
    """
    if not is_elementwise(record.name):
        return None
    pulled = local_vjp(site.node, site.cotangents)[site.slots[0]]
    try:
        if pulled is not None and pulled.shape == site.cotangent.shape:
            return sum_of_broadcast(site, pulled)
    except NotApplicableError:
        pass
    return None


def local_rows(
    sites: Sequence[Site], owners: Sequence[Owners | None], m: int
) -> list[Contribution]:
    """The gradients of all objectives at some inputs of any operation.

    It is differentiated once per objective, with the cotangents of the others masked: m times the
    cost of this operation, but of no other.
    """
    first = sites[0]
    rows: list[Tensor | None] = [None] * len(sites)
    for owner in sorted({int(i) for o in owners if o is not None for i in o.ids if i >= 0}):
        masked = [
            None if D is None or who is None else _masked(D, who, owner)
            for D, who in zip(first.cotangents, owners, strict=True)
        ]
        gradients = local_vjp(first.node, masked)
        for j, site in enumerate(sites):
            gradient = gradients[site.slots[0]]
            if gradient is not None:
                row = site.cast(_fitted(gradient, site.shape))
                block = rows[j]
                if block is None:
                    block = rows[j] = row.new_zeros(m, *site.shape)
                block[owner] = row
    return [
        Rows(_nothing(site, m) if block is None else block, site.placements[0])
        for site, block in zip(sites, rows, strict=True)
    ]


def _nothing(site: Site, m: int) -> Tensor:
    return site.cotangent_like.new_zeros(m, *site.shape, dtype=site.dtype)


def _masked(cotangent: Tensor, owners: Owners, owner: int) -> Tensor:
    mask = torch.as_tensor(owners.ids == owner, device=cotangent.device)
    if owners.axis is None:
        return cotangent * mask[0]
    shape = [1] * cotangent.ndim
    shape[owners.axis] = -1
    # not a product: what is infinite elsewhere must not become NaN here
    return torch.where(mask.view(shape), cotangent, torch.zeros_like(cotangent))


def _fitted(gradient: Tensor, shape: Shape) -> Tensor:
    """Autograd sums gradients to the shape of the input only after the operation."""
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    return dense if dense.shape == shape else dense.sum_to_size(shape)


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

        run_pass(
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


def computed_rows(
    graph: Graph,
    plan: Plan,
    parts: Mapping[int, Sequence[Contribution]],
    parameters: Mapping[int, Tensor],
    m: int,
) -> list[Contribution]:
    """Rows of the parameters that are computed with, from the contributions of all uses."""
    found = _pulled_back(graph, plan, parts, parameters, m)
    for unit in plan.units:
        (parameter, *_) = unit.parameters
        if parameter in parameters:
            for position in unit.uses:
                for part in parts.get(position, ()):
                    rows = part.rows()
                    found[parameter] = found[parameter] + rows if parameter in found else rows
    return [
        Rows(rows, Placement(parameter, rows.shape[1], (rows.shape[1],)))
        for parameter, rows in found.items()
    ]


def _pulled_back(
    graph: Graph,
    plan: Plan,
    parts: Mapping[int, Sequence[Contribution]],
    parameters: Mapping[int, Tensor],
    m: int,
) -> dict[int, Tensor]:
    results: list[GradientEdge] = []
    rows: list[Tensor] = []
    precision = torch.float32
    for position in plan.virtual:
        use = plan.uses[position]
        for part in parts.get(position, ()):
            node = graph.nodes[use.edge.node]
            dtype = node._input_metadata[use.edge.output].dtype
            results.append(GradientEdge(node, use.edge.output))
            shape = (m, *use.placements[0].shape)
            columns = part.rows()
            precision = columns.dtype
            if dtype.is_complex:
                columns = torch.view_as_complex(columns.view(*shape, 2))
            rows.append(columns.view(shape).to(dtype))
    found: dict[int, list[Tensor]] = {}
    if results:
        for k in range(m):
            with hooks_silenced(parameters.values()):
                gradients = torch.autograd.grad(
                    results,
                    list(parameters.values()),
                    [row[k] for row in rows],
                    retain_graph=True,
                    allow_unused=True,
                )
            for (parameter, tensor), gradient in zip(parameters.items(), gradients, strict=True):
                found.setdefault(parameter, []).append(
                    to_columns(torch.zeros_like(tensor) if gradient is None else gradient)
                )
    return {parameter: torch.stack(flats).to(precision) for parameter, flats in found.items()}

"""Turns the gradients that a pass meets into contributions: by a rule, or without one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from lightning_jd.engines._objectives import is_one
from lightning_jd.engines._parameters import column_count, to_columns
from lightning_jd.engines.tape.contributions import Contribution, Rows
from lightning_jd.engines.tape.graph import (
    Cotangents,
    Graph,
    Placement,
    Record,
    Shape,
    gradients_of,
    local_vjp,
    read_ahead,
    run_pass,
)
from lightning_jd.engines.tape.owners import Owners
from lightning_jd.engines.tape.owners.flow import is_elementwise
from lightning_jd.engines.tape.plan import Plan
from lightning_jd.engines.tape.rules import NotApplicableError, Site, sum_of_broadcast
from lightning_jd.engines.tape.run._request import Request
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
    if not sites:
        return []
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
#: Uses of one operation without an applicable rule, and its cotangents.
Refused = tuple[list[int], Cotangents]


class Interpreter:
    """Runs the rules of a plan, in the order in which a pass meets their operations.

    Args:
        graph: The graph.
        plan: The plan.
        request: The request.
        scale: What losses are multiplied by; by default that of the request.
        read: Reads what the node of a use has saved, where that must not be read from the graph.
        node: Stands for every node, where rules must not read from nodes.

    Attributes:
        local: Positions of uses without an applicable rule, whose operation is differentiated
            alone.
    """

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        request: Request,
        *,
        scale: float | Tensor | None = None,
        read: Callable[[int, str], Any] | None = None,
        node: Any = None,
    ) -> None:
        self._graph, self._plan, self._request = graph, plan, request
        self._scale = request.scale if scale is None else scale
        self._read, self._node = read, node
        self.local: set[int] = set()

    def run(
        self, losses: Tensor, weights: Tensor, deliver: Deliver, *, retain_graph: bool = True
    ) -> None:
        """One pass.

        Args:
            losses: The losses.
            weights: Their weights; the scale is applied here.
            deliver: Called once per use that receives a gradient.
            retain_graph: Whether the graph is kept. If not, all uses must have a rule that has
                accepted them before, and no saved tensor may have a hook.
        """
        graph, plan = self._graph, self._plan
        fetched = read_ahead(
            (use.node, graph.nodes[use.node], plan.rule(use).saved) for use in plan.uses
        )

        def read(node: int, name: str) -> Any:
            found = fetched.get(node, {})
            return found[name] if name in found else getattr(graph.nodes[node], "_saved_" + name)

        if fetched:
            self._read = read
        later: list[Refused] = []
        order = plan.node_order = []

        def consume(node: int, cotangents: Cotangents) -> None:
            order.append(node)
            self._consume(node, cotangents, deliver, later)
            if later and not retain_graph:
                raise _changed_its_mind(plan.records[node].name)

        run_pass(
            *(graph, losses, weights * self._scale, plan.by_node, plan.lowest_outputs, consume),
            retain_graph=retain_graph,
        )
        # It runs nodes, which must not happen inside of the pass: saved tensors of checkpoints are
        # given out once per pass.
        self._deliver_refused(later, deliver)

    def interpret(self, cotangents: Mapping[int, Cotangents], deliver: Deliver) -> None:
        """Deliver the contributions of all uses, after a pass that has captured all gradients."""
        later: list[Refused] = []
        for node, several in cotangents.items():
            self._consume(node, several, deliver, later)
        self._deliver_refused(later, deliver)

    def by_rule(
        self, position: int, cotangents: Cotangents, results: dict[Any, Any] | None = None
    ) -> Contribution | None:
        """The contribution of a use by its rule, if that covers the case."""
        plan, use = self._plan, self._plan.uses[position]
        rule = plan.rule(use).function
        if rule is None or plan.arrangements[position] is None:
            return None
        if cotangents[0] is not None and cotangents[0].is_complex():
            return None  # rules are about real numbers
        site = self._site(position, cotangents, range(len(use.slots)), results)
        try:
            found = rule(site)
        except NotApplicableError:
            return None
        return found if isinstance(found, Contribution) else Rows(found, site.placements[0])

    def _consume(
        self, node: int, cotangents: Cotangents, deliver: Deliver, later: list[Refused]
    ) -> None:
        """Deliver the contributions of the uses of one operation, and note those without a rule."""
        if all(cotangent is None for cotangent in cotangents):
            return
        if not is_one(self._scale):
            cotangents = tuple([D if D is None else self._unscaled(D) for D in cotangents])
        refused = []
        results: dict[Any, Any] = {}
        for position in self._plan.by_node[node]:
            part = self.by_rule(position, cotangents, results)
            self._plan.refused[position] = part is None
            if part is None:
                refused.append(position)
            else:
                deliver(position, [part])
        if refused:
            later.append((refused, cotangents))

    def _unscaled(self, D: Tensor) -> Tensor:
        return self._request.unscaled(D, self._scale)

    def _site(
        self,
        position: int,
        cotangents: Cotangents,
        chosen: Sequence[int],
        results: dict[Any, Any] | None = None,
    ) -> Site:
        """What a rule sees of some slots of a use."""
        use = self._plan.uses[position]
        return Site(
            node=self._graph.nodes[use.node] if self._node is None else self._node,
            slots=tuple([use.slots[j] for j in chosen]),
            cotangents=cotangents,
            arrangement=self._plan.arrangements[position],
            placements=tuple([use.placements[j] for j in chosen]),
            dtype=self._request.dtype,
            read=None if self._read is None else partial(self._read, use.node),
            results={} if results is None else results,
        )

    def _deliver_refused(self, later: list[Refused], deliver: Deliver) -> None:
        """Deliver the contributions of uses without a rule, slot by slot."""
        while later:
            positions, cotangents = later.pop()
            first = self._plan.uses[positions[0]]
            record, owners = self._plan.records[first.node], first.owners
            assert owners is not None
            sites = [
                (position, self._site(position, cotangents, [j]))
                for position in positions
                for j in range(len(self._plan.uses[position].slots))
            ]
            parts = [broadcast_once(site, record) for _, site in sites]
            alone = [k for k, part in enumerate(parts) if part is None]
            found = local_rows([sites[k][1] for k in alone], owners, self._request.owners)
            for k, rows in zip(alone, found, strict=True):
                parts[k] = rows
                self.local.add(sites[k][0])
            by_use: dict[int, list[Contribution]] = {}
            for (position, _), part in zip(sites, parts, strict=True):
                assert part is not None
                by_use.setdefault(position, []).append(part)
            for position, several in by_use.items():
                deliver(position, several)


def _changed_its_mind(operation: str) -> GraphError:
    return GraphError(
        "A rule must accept or refuse an operation by its sizes, got one that has accepted "
        f"{operation!r} before and refuses it now, while the graph is being freed. Pass "
        "`retain_graph=True`, or let the rule always refuse."
    )


def computed_rows(
    graph: Graph, plan: Plan, request: Request, parts: Mapping[int, Sequence[Contribution]]
) -> list[Contribution]:
    """Rows of parameters that are computed with before their use, as normalised weights.

    The operation that consumes the result gives one gradient per objective *of the result*. These
    rows are pulled back through the computation, which does not depend on the batch.

    Args:
        graph: The graph.
        plan: The plan.
        request: The request.
        parts: The contributions of all uses of these parameters, and of what is computed of them.
    """
    parameters = {k: request.tensors[k] for k in plan.computed}
    results: list[GradientEdge] = []
    rows: list[Tensor] = []
    for position in plan.virtual:
        edge, placement = plan.uses[position].edge, plan.uses[position].placements[0]
        for part in parts.get(position, ()):
            node, columns = graph.nodes[edge.node], part.rows()
            dtype = node._input_metadata[edge.output].dtype
            shape = (request.objectives.m, *placement.shape)
            if dtype.is_complex:
                columns = torch.view_as_complex(columns.view(*shape, 2))
            results.append(GradientEdge(node, edge.output))
            rows.append(columns.view(shape).to(dtype))
    found: dict[int, Tensor] = {}
    for k in range(request.objectives.m if results else 0):
        gradients = gradients_of(results, [row[k] for row in rows], [*parameters.values()])
        for (parameter, tensor), gradient in zip(parameters.items(), gradients, strict=True):
            if parameter not in found:
                shape = request.objectives.m, column_count(tensor)
                found[parameter] = tensor.new_zeros(shape, dtype=request.dtype)
            if gradient is not None:
                found[parameter][k] = to_columns(gradient)
    for unit in plan.units:
        (parameter, *_) = unit.parameters
        if parameter in parameters:
            for part in [part for position in unit.uses for part in parts.get(position, ())]:
                direct = part.rows()
                found[parameter] = found[parameter] + direct if parameter in found else direct
    return [
        Rows(rows, Placement(parameter, rows.shape[1], (rows.shape[1],)))
        for parameter, rows in found.items()
    ]

"""Carries out a plan: one pass for all objectives where owners are known, else one pass each.

Parameters that take one pass per objective come in groups. Each group takes passes of its own, and
is over before the next begins, so that the gradients of many rows need not be held everywhere at
the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from lightning_jd.engines._objectives import is_one
from lightning_jd.engines.tape.contributions import (
    Contribution,
    OneRow,
    OuterProduct,
    Rows,
    SharedActivations,
)
from lightning_jd.engines.tape.graph import Graph, Placement, Shape, gradients_of
from lightning_jd.engines.tape.owners import Arrangement, Owners
from lightning_jd.engines.tape.plan import Known, Plan, Use
from lightning_jd.engines.tape.rules import NotApplicableError, Site, rule_at
from lightning_jd.engines.tape.run._interpreter import Interpreter, computed_rows
from lightning_jd.engines.tape.run._ledger import Assembly, Ledger
from lightning_jd.engines.tape.run._request import Request


class PlanRunner:
    """Carries out a plan; rows of ``plain`` parameters are taken from autograd alone."""

    def __init__(
        self,
        graph: Graph,
        known: Known,
        plan: Plan,
        request: Request,
        *,
        plain: frozenset[int] = frozenset(),
        retain_graph: bool = True,
    ) -> None:
        self.graph, self.known, self.plan = graph, known, plan
        self.request, self.plain, self.retain_graph = request, plain, retain_graph
        #: How each reached parameter was dealt with.
        self.paths: dict[int, str] = {}

    def run(self, ledger: Ledger) -> None:
        """Add the Gramian of all reached parameters to a ledger."""
        instances, by_rows = self.request.instances, self.plan.by_rows
        if instances is None:
            by_rows = self.plan.reached
        elif self.plan.uses:
            self._by_owners(instances, ledger)
        if by_rows:
            self._by_rows(by_rows, ledger)

    def _by_owners(self, losses: Tensor, ledger: Ledger) -> None:
        interpreter = Interpreter(
            self.graph, self.plan, len(losses), ledger.G.dtype, self.request.scale
        )
        assembly = Assembly(self.plan, ledger)
        if losses.ndim == 1:
            ones, keep = torch.ones_like(losses), self.retain_graph
            interpreter.run(losses, ones, assembly.deliver, retain_graph=keep)
        else:
            _run_per_task(interpreter, losses, assembly)
        assembly.close()
        self.paths.update(self.plan.paths(interpreter.local))
        computed = {k: self.request.tensors[k] for k in self.plan.computed}
        if computed:
            m = self.request.objectives.m
            for rows in computed_rows(self.graph, self.plan, assembly.others, computed, m):
                ledger.add(rows)
            self.paths.update(dict.fromkeys(computed, "computed"))

    def _by_rows(self, positions: frozenset[int], ledger: Ledger) -> None:
        general = self.known.plan(self.graph, owners=1)
        paths = add_rows(ledger, self.graph, general, self.request, positions, self.plain)
        self.paths.update(paths)


def _run_per_task(interpreter: Interpreter, losses: Tensor, assembly: Assembly) -> None:
    """One pass per column of the losses; the rows of an instance are put side by side."""
    tasks = losses.shape[1]
    passes: dict[int, dict[int, list[Contribution]]] = {}
    for task in range(tasks):
        chosen = torch.zeros_like(losses)
        chosen[:, task] = 1

        def take(position: int, parts: list[Contribution], task: int = task) -> None:
            passes.setdefault(position, {})[task] = parts

        interpreter.run(losses, chosen, take)
    while passes:
        position, by_task = passes.popitem()
        assembly.deliver(position, _side_by_side(by_task, tasks))


def _side_by_side(by_task: dict[int, list[Contribution]], tasks: int) -> list[Contribution]:
    if len(by_task) == tasks and len({len(parts) for parts in by_task.values()}) == 1:
        first, *others = by_task.values()
        stacked = [part.stacked([other[j] for other in others]) for j, part in enumerate(first)]
        if all(part is not None for part in stacked):
            return [part for part in stacked if part is not None]
    # some task does not reach the use, or a rule applied to some passes only
    singles = {
        task: {single.placements[0]: single for part in parts for single in part.split()}
        for task, parts in by_task.items()
    }
    placements = next(iter(singles.values())).keys()
    found: list[Contribution] = []
    for placement in placements:
        some = {task: parts[placement].rows() for task, parts in singles.items()}
        blank = torch.zeros_like(next(iter(some.values())))
        rows = torch.stack([some.get(task, blank) for task in range(tasks)], dim=1)
        found.append(Rows(rows.flatten(0, 1), placement, is_placed=True))
    return found


#: Numbers that rows of instances may take at the same time (256 MB in float32).
_NUMBERS = 1 << 26


@dataclass(frozen=True)
class Target:
    """Something to differentiate with respect to.

    Attributes:
        parameters: The parameters that it is about.
        what: Those parameters themselves, or the output of the operation that consumes them.
        size: How many numbers are stored per row.
        contribution: Turns what is stored of all rows into a contribution.
        path: What it is called.
        row: Maps a gradient to the row to store; ``None`` stores the gradient itself.
        task: The only row that reaches it, if that is known; no other one is stored then.
    """

    parameters: tuple[int, ...]
    what: Tensor | GradientEdge
    size: int
    contribution: Callable[[Tensor], Contribution]
    path: str
    row: Callable[[Tensor], Tensor] | None = None
    task: int | None = None


def add_rows(
    ledger: Ledger,
    graph: Graph,
    plan: Plan,
    request: Request,
    positions: Collection[int],
    plain: Collection[int] = (),
) -> dict[int, str]:
    """Add the Gramian of some parameters, with one pass per row, by a plan for one owner.

    Rows of ``plain`` parameters come from autograd, with nothing of the tape in between.

    Returns:
        How each parameter was dealt with.
    """
    objectives, m = request.objectives, request.objectives.m
    parameters = {k: request.tensors[k] for k in sorted(positions)}
    several = isinstance(objectives.losses, tuple) and m > 1
    task_of = {k: plan.task_of[plan.leaves[k]] if several else None for k in parameters}
    targets: list[Target] = []
    for use in _single_uses(plan, {k for k in parameters if task_of[k] is None and k not in plain}):
        target = _without_gradients(graph, plan, use, request) or _by_rule(graph, use, request)
        if target is not None:
            targets.append(target)
    covered = {position for target in targets for position in target.parameters}
    targets += [
        _plainly(k, tensor, task_of[k]) for k, tensor in parameters.items() if k not in covered
    ]
    # cotangents of many rows may well outweigh the parameters; an ordinary pass is cheap then
    room = 1.5 * sum(parameter.numel() for parameter in parameters.values())
    cotangents = sum(m * target.size for target in targets if target.path == "kernel")
    for group in _groups(targets, plan, request):
        stored = _one_by_one(group, request)
        for target in group:
            # no name for it here: it must not outlive its use
            found = _contribution(target, stored.pop(0), m)
            if found is not None:
                ledger.add(found, keeps=cotangents <= room or target.path != "kernel")
            del found  # the next passes need the memory
    return {position: target.path for target in targets for position in target.parameters}


def _contribution(target: Target, rows: Tensor | None, m: int) -> Contribution | None:
    if rows is None:
        return None
    found = target.contribution(rows)
    return found if target.task is None else OneRow(found, target.task, m)


def _groups(targets: Sequence[Target], plan: Plan, request: Request) -> Iterator[list[Target]]:
    sizes = [prod(plan.records[leaf].shapes[0]) for leaf in plan.leaves.values()]
    limit = 2 * (sum(sizes) + plan.activations)
    if request.objectives.kind != "tasks":
        limit = max(limit, _NUMBERS)
    group: list[Target] = []
    total = 0
    for target in targets:
        size = target.size * (request.objectives.m if target.task is None else 1)
        if group and total + size > limit:
            yield group
            group, total = [], 0
        group.append(target)
        total += size
    if group:
        yield group


def _one_by_one(targets: Sequence[Target], request: Request) -> list[Tensor | None]:
    """What is stored of all rows, target by target; ``None`` where no row arrives."""
    stored: list[Tensor | None] = [None] * len(targets)
    places = list(dict.fromkeys(target.what for target in targets))
    for k in range(request.objectives.m):
        output, weight = request.objectives.row(k)
        found = gradients_of([output], [weight * request.scale], places)
        by_place = dict(zip(places, found, strict=True))
        for j, target in enumerate(targets):
            block, gradient = stored[j], by_place[target.what]
            if gradient is not None:
                row = _unscaled(gradient, request)
                row = _cast(row if target.row is None else target.row(row), request)
                if target.task is not None:
                    stored[j] = row.unsqueeze(0)
                    continue
                if block is None:
                    block = stored[j] = row.new_empty(request.objectives.m, *row.shape)
                    block[:k] = 0
                block[k] = row
            elif block is not None and target.task is None:
                block[k] = 0
    return stored


def _cast(gradient: Tensor, request: Request) -> Tensor:
    return gradient.to(request.dtype.to_complex() if gradient.is_complex() else request.dtype)


def _unscaled(gradient: Tensor, request: Request) -> Tensor:
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    return dense if is_one(request.scale) else _cast(dense, request) / request.scale


def _single_uses(plan: Plan, parameters: Collection[int]) -> Iterator[Use]:
    """Uses of whole parameters that have no other use."""
    count: dict[int, int] = {}
    for unit in plan.units:
        for position in unit.parameters:
            count[position] = count.get(position, 0) + len(unit.uses)
    for unit in plan.units:
        use = plan.uses[unit.uses[0]]
        single = all(k in parameters and count[k] == 1 for k in unit.parameters)
        if single and use.placements[0].is_whole and use.owners is not None:
            yield use


def _without_gradients(graph: Graph, plan: Plan, use: Use, request: Request) -> Target | None:
    """A matrix weight ``W`` in ``b + x W``, if :class:`SharedActivations` takes fewer operations.

    The rule, run with a cotangent of zeros, finds what meets the weight.
    """
    shape, weight = plan.records[use.node].shapes[0], use.placements[0]
    is_matrix = len(shape) == 2 and len(weight.shape) == 2
    if not is_matrix or not _shared_is_cheaper(shape, weight, request.objectives.m):
        return None
    node, dtype = graph.nodes[use.node], request.dtype
    nothing = torch.zeros((), dtype=dtype, device=node._input_metadata[0].device).expand(shape)
    try:
        part = _one_row(node, use, nothing, dtype)
    except NotApplicableError:
        return None
    if not isinstance(part, OuterProduct) or part.cotangents_first:
        return None
    return Target(
        parameters=tuple(placement.parameter for placement in use.placements),
        what=GradientEdge(node, 0),
        size=prod(shape),
        contribution=lambda D: SharedActivations(part.A[0], D, *use.placements),
        path="kernel",
    )


def _shared_is_cheaper(output: Shape, weight: Placement, m: int) -> bool:
    (n, o), i = output, weight.shape[0]
    without = n * n * i + m * n * n * o + m * m * n * o
    return without < m * n * i * o + m * m * i * o


def _one_row(node: Node, use: Use, cotangent: Tensor, dtype: torch.dtype) -> Contribution | None:
    """The contribution that a rule makes of a cotangent of one objective."""
    rule = rule_at(node.name(), use.slots[0]).function
    if rule is None:
        return None
    everyone = Arrangement(Owners(0, np.zeros(cotangent.shape[0], dtype=np.int64)), 1)
    found = rule(Site(node, use.slots, (cotangent,), everyone, use.placements, dtype))
    return found if isinstance(found, Contribution) else Rows(found, use.placements[0])


def _by_rule(graph: Graph, use: Use, request: Request) -> Target | None:
    """Operations whose rule is faster than autograd also for one row."""
    node = graph.nodes[use.node]
    if not rule_at(node.name(), use.slots[0]).for_tasks:
        return None

    def row(gradient: Tensor) -> Tensor:
        found = _one_row(node, use, gradient, request.dtype)
        assert found is not None
        return found.rows()[0]

    position, size = use.placements[0].parameter, use.placements[0].size
    placement = Placement(position, size, (size,))
    edge = GradientEdge(node, 0)
    return Target((position,), edge, size, lambda J: Rows(J, placement), "rows", row=row)


def _plainly(position: int, parameter: Tensor, task: int | None) -> Target:
    size = parameter.numel()
    placement = Placement(position, size, tuple(parameter.shape))
    return Target((position,), parameter, size, lambda J: Rows(J, placement), "rows", task=task)

"""Carries out a plan: one pass for all objectives where owners are known, else one pass each.

Parameters that take one pass per objective come in groups. Each group takes passes of its own, and
is over before the next begins, so that the gradients of many rows need not be held everywhere at
the same time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from lightning_jd.engines._graph import leaves_of, nodes_below, place_of, tasks_above
from lightning_jd.engines.tape.contributions import (
    Contribution,
    OneRow,
    OuterProduct,
    Rows,
    SharedActivations,
)
from lightning_jd.engines.tape.graph import Graph, Placement, Shape, gradients_of
from lightning_jd.engines.tape.plan import Known, Plan
from lightning_jd.engines.tape.run._interpreter import Interpreter, computed_rows
from lightning_jd.engines.tape.run._ledger import Assembly, Ledger
from lightning_jd.engines.tape.run._request import Request

#: Numbers that rows of instances may take at the same time (256 MB in float32).
_NUMBERS = 1 << 26


def run_plan(
    graph: Graph,
    known: Known,
    plan: Plan,
    request: Request,
    ledger: Ledger,
    *,
    plain: Collection[int] = (),
    retain_graph: bool = True,
) -> dict[int, str]:
    """Add the Gramian of all reached parameters to a ledger.

    Args:
        graph: The graph.
        known: What is known of it.
        plan: The plan.
        request: The request.
        ledger: The ledger.
        plain: Parameters whose rows are taken from autograd alone, one pass each.
        retain_graph: Whether the graph is kept.

    Returns:
        How each reached parameter was dealt with.
    """
    losses = request.instances
    if losses is None:
        return _add_rows(graph, known, request, ledger, plan.reached, plain)
    paths: dict[int, str] = {}
    if plan.uses:
        interpreter, assembly = Interpreter(graph, plan, request), Assembly(plan, ledger)
        if losses.ndim == 1:
            ones = torch.ones_like(losses)
            interpreter.run(losses, ones, assembly.deliver, retain_graph=retain_graph)
        else:
            _run_per_task(interpreter, losses, assembly)
        assembly.close()
        paths = plan.paths(interpreter.local) | dict.fromkeys(plan.computed, "computed")
        if plan.computed:
            for rows in computed_rows(graph, plan, request, assembly.others):
                ledger.add(rows)
    if plan.by_rows:
        paths |= _add_rows(graph, known, request, ledger, plan.by_rows, plain)
    return paths


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


@dataclass(frozen=True)
class Target:
    """Something to differentiate with respect to.

    Attributes:
        placements: Of the parameters that it is about.
        what: A parameter itself, or the output of the operation that consumes it and its bias.
        size: How many numbers are stored per row.
        activations: What meets the weight, if gradients at the operation are stored.
        task: The only row that reaches it, if that is known; no other one is stored then.
    """

    placements: tuple[Placement, ...]
    what: Tensor | GradientEdge
    size: int
    activations: Tensor | None = None
    task: int | None = None

    @property
    def path(self) -> str:
        """What it is called in :attr:`Tape.paths`."""
        return "rows" if self.activations is None else "kernel"

    def contribution(self, stored: Tensor, m: int) -> Contribution:
        """What the stored rows contribute."""
        if self.activations is not None:
            return SharedActivations(self.activations, stored, *self.placements)
        rows = Rows(stored, self.placements[0])
        return rows if self.task is None else OneRow(rows, self.task, m)


def _add_rows(
    graph: Graph,
    known: Known,
    request: Request,
    ledger: Ledger,
    chosen: Collection[int],
    plain: Collection[int],
) -> dict[int, str]:
    """Add the Gramian of some parameters, with one pass per row, by the plan for one owner."""
    objectives, m, tensors = request.objectives, request.objectives.m, request.tensors
    plan = known.plan(graph, owners=1)
    task_of: dict[int, int] = {}
    if isinstance(objectives.losses, tuple) and m > 1:
        below = nodes_below(objectives)
        tasks = tasks_above(below, [place_of(output) for output in objectives.outputs])
        single = {id(leaf): tasks[node] for node, leaf in leaves_of(below)}
        bits = {k: single.get(id(tensors[k]), 0) for k in chosen}
        task_of = {k: b.bit_length() - 1 for k, b in bits.items() if b.bit_count() == 1}
    interpreter = Interpreter(graph, plan, request)
    by_use = [
        _at_operation(graph, plan, interpreter, position, request)
        for position in _single_uses(plan, set(chosen) - task_of.keys() - set(plain))
    ]
    targets = [target for target in by_use if target is not None]
    covered = {placement.parameter for target in targets for placement in target.placements}
    for k in sorted(set(chosen) - covered):
        size = tensors[k].numel()
        placement = Placement(k, size, tuple(tensors[k].shape))
        targets.append(Target((placement,), tensors[k], size, task=task_of.get(k)))
    # cotangents of many rows may well outweigh the parameters; an ordinary pass is cheap then
    room = 1.5 * sum(tensors[k].numel() for k in chosen)
    cotangents = sum(m * target.size for target in targets if target.path == "kernel")
    for group in _groups(targets, plan, request):
        stored = _stored(group, request)
        for target in group:
            block = stored.pop(0)  # no other name for it: it must not outlive its use
            if block is not None:
                found = target.contribution(block, m)
                del block
                ledger.add(found, keeps=cotangents <= room or target.path != "kernel")
                del found  # the next passes need the memory
    return {p.parameter: target.path for target in targets for p in target.placements}


def _groups(targets: Sequence[Target], plan: Plan, request: Request) -> Iterator[list[Target]]:
    """Targets whose rows take about as much memory as parameters and activations do."""
    parameters = sum(request.tensors[k].numel() for k in plan.reached)
    limit = 2 * (parameters + plan.activations)
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


def _stored(targets: Sequence[Target], request: Request) -> list[Tensor | None]:
    """The gradients of all rows, target by target; ``None`` where no row arrives."""
    stored: list[Tensor | None] = [None] * len(targets)
    places = list(dict.fromkeys(target.what for target in targets))
    for k in range(request.objectives.m):
        output, weight = request.objectives.row(k)
        found = gradients_of([output], [weight * request.scale], places)
        by_place = dict(zip(places, found, strict=True))
        for j, target in enumerate(targets):
            if (gradient := by_place[target.what]) is None:
                continue
            dense = gradient.to_dense() if gradient.is_sparse else gradient
            row = request.unscaled(dense, request.scale)
            if target.task is not None:
                stored[j] = row.unsqueeze(0)
                continue
            if (block := stored[j]) is None:
                block = stored[j] = row.new_zeros(request.objectives.m, *row.shape)
            block[k] = row
    return stored


def _single_uses(plan: Plan, parameters: Collection[int]) -> Iterator[int]:
    """Positions of uses of whole parameters that have no other use."""
    count: dict[int, int] = {}
    for unit in plan.units:
        for position in unit.parameters:
            count[position] = count.get(position, 0) + len(unit.uses)
    for unit in plan.units:
        use = plan.uses[unit.uses[0]]
        single = all(k in parameters and count[k] == 1 for k in unit.parameters)
        if single and use.placements[0].is_whole and use.owners is not None:
            yield unit.uses[0]


def _at_operation(
    graph: Graph, plan: Plan, interpreter: Interpreter, position: int, request: Request
) -> Target | None:
    """A matrix weight ``W`` in ``b + x W``, if :class:`SharedActivations` takes fewer operations.

    The rule, run with a cotangent of zeros, finds what meets the weight.
    """
    use = plan.uses[position]
    shape, weight = plan.records[use.node].shapes[0], use.placements[0]
    is_matrix = len(shape) == 2 and len(weight.shape) == 2
    if not is_matrix or not _shared_is_cheaper(shape, weight, request.objectives.m):
        return None
    node = graph.nodes[use.node]
    device = node._input_metadata[0].device
    nothing = torch.zeros((), dtype=request.dtype, device=device).expand(shape)
    part = interpreter.by_rule(position, (nothing,))
    if not isinstance(part, OuterProduct) or part.cotangents_first:
        return None
    return Target(use.placements, GradientEdge(node, 0), prod(shape), part.A[0])


def _shared_is_cheaper(output: Shape, weight: Placement, m: int) -> bool:
    (n, o), i = output, weight.shape[0]
    without = n * n * i + m * n * n * o + m * m * n * o
    return without < m * n * i * o + m * m * i * o

"""One step: the passes, and which way each parameter takes."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_jd.engines.tape.contributions import Contribution, Rows
from lightning_jd.engines.tape.graph import Graph
from lightning_jd.engines.tape.plan import Known, Plan
from lightning_jd.engines.tape.run._computed_parameters import computed_rows
from lightning_jd.engines.tape.run._interpreter import Interpreter
from lightning_jd.engines.tape.run._ledger import Assembly, Ledger
from lightning_jd.engines.tape.run._request import Request
from lightning_jd.engines.tape.run._row_by_row import add_rows


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

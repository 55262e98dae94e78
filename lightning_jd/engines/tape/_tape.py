"""The tape: Gramian first, then the gradients for the chosen weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from lightning_jd.engines._objectives import Objectives
from lightning_jd.engines.tape._assembly import Assembly
from lightning_jd.engines.tape._contribution import Contribution
from lightning_jd.engines.tape._general import add_rows
from lightning_jd.engines.tape._graph import Graph, walk
from lightning_jd.engines.tape._harvest import Harvest
from lightning_jd.engines.tape._ledger import Ledger
from lightning_jd.engines.tape._owners import alone, in_order
from lightning_jd.engines.tape._plan import Plan, make_plan
from lightning_jd.engines.tape._resolve import resolve
from lightning_jd.engines.tape._virtual import computed_rows
from lightning_jd.errors import GraphError


class Tape:
    """Gramian ``G = J Jᵀ`` of the losses with respect to the parameters, then ``Jᵀ w``."""

    def __init__(
        self,
        objectives: Objectives,
        named_params: Sequence[tuple[str, Tensor]],
        *,
        scale: float | Tensor = 1.0,
        memory: Literal["fast", "low"] = "fast",
        check: Literal["auto", "raise", "off"] = "auto",
    ) -> None:
        self.objectives = objectives
        self.named = list(named_params)
        self.scale = scale
        self.memory = memory
        self.check = check
        self.paths: dict[str, str] = {}
        self._ledger: Ledger | None = None

    @torch.no_grad()
    def gramian(self) -> Tensor:
        """The matrix of inner products of the gradients of the objectives, of shape (m, m)."""
        positions = {
            id(tensor): k for k, (_, tensor) in enumerate(self.named) if tensor.requires_grad
        }
        outputs = self.objectives.outputs
        graph = walk(outputs, positions)
        dtypes = {tensor.dtype for _, tensor in self.named} | {self.objectives.dtype}
        dtype = torch.float64 if torch.float64 in dtypes else torch.float32
        m = self.objectives.m
        ledger = Ledger(m, dtype, self.objectives.device)
        self._ledger = ledger
        params = dict(enumerate(tensor for _, tensor in self.named))
        losses = self.objectives.losses
        rows: set[int] = set()
        if isinstance(losses, Tensor) and self.objectives.kind != "tasks" and len(losses) > 1:
            plan = make_plan(graph.records, [(graph.roots[0], in_order(len(losses)))])
            rows = self._by_instance(graph, plan, losses, ledger, params)
            reached = plan.reached
        else:
            plan = make_plan(graph.records, [(edge, alone()) for edge in graph.roots])
            rows = set(plan.reached)
            reached = plan.reached
        if not reached:
            raise GraphError("no parameter")
        for k, (name, _) in enumerate(self.named):
            self.paths[name] = "rows" if k in rows else "rule" if k in reached else "unreached"
        if rows:
            general = make_plan(graph.records, [(edge, alone()) for edge in graph.roots])
            each = [self.objectives.row(i) for i in range(m)]
            add_rows(ledger, graph, general, each, {k: params[k] for k in sorted(rows)}, self.scale)
        return ledger.close()

    def _by_instance(self, graph: Graph, plan: Plan, losses: Tensor, ledger: Ledger, params: dict[int, Tensor]) -> set[int]:
        resolution = resolve(graph, plan, losses)
        harvest = Harvest(graph, plan, resolution.uses, len(losses), ledger.G.dtype, self.scale)
        left_out = resolution.lost | plan.computed
        assembly = Assembly(plan, left_out, ledger)
        if resolution.uses:
            if losses.ndim == 1:
                harvest.run(losses, torch.ones_like(losses), assembly.deliver)
            else:
                collected: dict[int, list[list[Contribution] | None]] = {}
                k = losses.shape[1]
                for t in range(k):
                    chosen = torch.zeros_like(losses)
                    chosen[:, t] = 1

                    def take(position: int, parts: list[Contribution], t: int = t) -> None:
                        collected.setdefault(position, [None] * k)[t] = parts

                    harvest.run(losses, chosen, take)
                for position, passes in collected.items():
                    first = next(p for p in passes if p is not None)
                    if any(p is None for p in passes):
                        raise NotImplementedError
                    stacked = [first[j].stacked([p[j] for p in passes[1:]]) for j in range(len(first))]
                    assembly.deliver(position, stacked)
        assembly.close()
        computed = plan.computed - resolution.lost
        if computed:
            for part in computed_rows(graph, plan, assembly.others, {k: params[k] for k in computed}, self.objectives.m):
                ledger.add(part)
        return set(resolution.lost | plan.by_rows)

    @torch.no_grad()
    def gradients(self, weights: Tensor) -> list[Tensor | None]:
        """The combined gradient ``Jᵀ w`` of every parameter, or None where nothing reaches it."""
        if self._ledger is None:
            self.gramian()
        assert self._ledger is not None
        found = self._ledger.gradients(weights)
        return [
            found[k].view(p.shape).to(p.dtype) if k in found else None
            for k, (_, p) in enumerate(self.named)
        ]

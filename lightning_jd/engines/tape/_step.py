"""One step of the tape: walk, plan, then a loop, a program or the rules; certified when due."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_jd.engines.tape._agreement import Said, agree, complain_of_program, said_by
from lightning_jd.engines.tape._certificate import Mismatch, mismatches, random_vector
from lightning_jd.engines.tape._complaint import complain
from lightning_jd.engines.tape._extracts import Extract
from lightning_jd.engines.tape._way import Way, decide, key_of, may_loop
from lightning_jd.engines.tape.graph import Graph, holds_functions, types_in
from lightning_jd.engines.tape.owners import Evidence
from lightning_jd.engines.tape.plan import KnownGraph, Plan, known_graph, standing_of
from lightning_jd.engines.tape.run import (
    Collector,
    Ledger,
    Loop,
    Recording,
    Replay,
    Request,
    Visitor,
    loop_over_tasks,
    record,
)


class Outcome(NamedTuple):
    """What a step has found.

    Attributes:
        ledger: The Gramian, and what gradients are computed from.
        plan: The plan that was carried out; ``None`` for a plain loop.
        paths: How each reached parameter was dealt with; ``None``: by the rules of the plan.
        is_hooked: Whether foreign hooks may be in the graph, which is kept then; unknown for a
            plain loop.
    """

    ledger: Ledger | Replay | Loop
    plan: Plan | None = None
    paths: Mapping[int, str] | None = None
    is_hooked: bool = False


class Step:
    """Computes the Gramian of one graph.

    Args:
        request: What is asked for.
        collects: Contributions are collected, and nothing is multiplied.
        beside: Other parameters, whose gradients a loop gives, too.
        extract: Takes the contributions in place of a ledger that collects them.
    """

    def __init__(
        self,
        request: Request,
        *,
        collects: bool = False,
        beside: Sequence[Tensor] = (),
        extract: Extract | None = None,
    ) -> None:
        self.request, self.beside, self.extract = request, beside, extract
        self.keeps, self.collects = collects, collects or extract is not None
        self.paths: Mapping[int, str] | None = None

    def run(self) -> Outcome:
        """Take the fastest exact way that is known for this graph.

        Raises:
            GraphError: If no loss depends on a parameter, or autograd cannot see through a
                checkpoint, or a certificate fails and ``check`` is ``"raise"``.
        """
        if self.collects or not may_loop(self.request):
            return self.by_plan()
        loop = self.loop()
        if not loop.reached:
            raise self.request.nothing_reached()
        return Outcome(loop, paths=dict.fromkeys(loop.reached, "rows"))

    def by_plan(self) -> Outcome:
        """Walk the graph, look its plan up, and carry it out."""
        request = self.request
        graph, known = known_graph(request.objectives.outputs, request.tensors)
        last: Way | None = known.way
        name = "" if self.extract is None else self.extract.name
        key = key_of(request, graph, collects=self.collects, extract=name)
        if last is not None and last.is_repeated(key) and not last.is_due(request):
            replay = self.replay(last, graph)
            if replay is not None:
                last.standing.passed(last.delivery)
                return Outcome(replay, last.plan)
        evidence = Evidence(graph, request.owners)
        standing = standing_of(known, graph, evidence.m, key.model, is_hooked=key.is_hooked)
        while True:
            plan = known.plan(evidence, standing.demoted)
            if not plan.reached:
                raise request.nothing_reached()
            way = decide(request, graph, plan, standing, key)
            way.experience.steps += 1
            known.way = way if known.is_static else None
            if not way.is_due(request):
                return self.uncertified(way, graph, known)
            outcome = self.certified(way, graph, known)
            if outcome is not None:
                return outcome

    def uncertified(self, way: Way, graph: Graph, known: KnownGraph) -> Outcome:
        """Run the program, record it, or ask the rules."""
        request, plan = self.request, way.plan
        way.standing.passed(way.delivery)
        if way.has_program and (replay := self.replay(way, graph)) is not None:
            return Outcome(replay, plan)
        if way.can_replay and way.experience.steps > 1:  # it has been met before: it may be again
            ledger, compiled = record(graph, plan, request)
            way.experience.compiled, way.experience.is_unrecordable = compiled, compiled is None
            return Outcome(ledger, plan)
        kind = self.collector() if self.collects else Ledger
        empty = request.empty_ledger(kind, keeps=way.keeps, once=way.frees)
        ledger = self.interpret(graph, known, way, empty, frees=way.frees)
        return Outcome(ledger, plan, self.paths, way.key.is_hooked)

    def certified(self, way: Way, graph: Graph, known: KnownGraph) -> Outcome | None:
        """Ask the rules, and check what they say, and what the program says.

        Returns:
            ``None`` if parameters failed: they are dealt with row by row, by another plan.
        """
        request, plan = self.request, way.plan
        said = self.said(way, graph)  # before the rules keep what they need
        empty = request.empty_ledger(keeps=way.keeps, notes=True)
        ledger = self.interpret(graph, known, way, empty)
        agrees = said is not None and agree(said, ledger, request.tensors)
        del said
        wrong = self.mismatches(ledger, graph, way)
        if wrong == [] and way.has_program and not agrees:
            way.experience.compiled, way.experience.is_unrecordable = None, True
            complain_of_program()
        if wrong:
            complain(wrong, [n for n, _ in request.named], raises=request.check == "raise")
            way.standing.demoted |= {p for mismatch in wrong for p in mismatch.parameters}
            return None
        ledger.shares.clear()
        if self.collects:
            kind = self.collector(None if wrong is None else ledger.G)
            ledger = self.interpret(graph, known, way, request.empty_ledger(kind))
        if self.extract is not None and self.extract.wrong:
            bad = frozenset(self.extract.wrong)
            found = [Mismatch((p,), self.extract.name, inf) for p in sorted(bad)]
            complain(found, [n for n, _ in request.named], raises=request.check == "raise")
            way.standing.demoted |= bad
            return None
        if wrong is not None:
            way.standing.passed(way.delivery)
        return Outcome(ledger, plan, self.paths, way.key.is_hooked)

    def collector(self, certified: Tensor | None = None) -> Callable[..., Ledger]:
        """Makes the ledger that takes the contributions, which are compared if G is certified."""
        if self.extract is None:
            return Collector
        self.extract.begin(certified)
        return partial(Visitor, self.extract.take, self.keeps)

    def interpret(
        self,
        graph: Graph,
        known: KnownGraph,
        way: Way,
        ledger: Ledger,
        *,
        frees: bool = False,
    ) -> Ledger:
        """Ask the rules."""
        recording = Recording(
            *(graph, known, way.plan, self.request), plain=way.plain, retain_graph=not frees
        )
        recording.run(ledger)
        ledger.close()
        self.paths = recording.paths
        return ledger

    def replay(self, way: Way, graph: Graph) -> Replay | None:
        """Run the program; ``None`` if it is gone, or something is not as it was recorded."""
        compiled = way.experience.compiled
        if compiled is None:
            return None
        return compiled.run(graph, self.request, retain_graph=not way.frees)

    def said(self, way: Way, graph: Graph) -> Said | None:
        """What the program says, if there is one that runs."""
        if not way.has_program:
            return None
        replay = self.replay(way._replace(frees=False), graph)
        return None if replay is None else said_by(replay)

    def mismatches(self, ledger: Ledger, graph: Graph, way: Way) -> list[Mismatch] | None:
        """What a certificate finds.

        Returns:
            ``None`` where something is not finite, so that nothing can be compared: it is tried
            again in the next step.
        """
        if not bool(torch.isfinite(ledger.G).all()):
            return None
        # Under autocast, parameters and losses are precise, but what is between them is not.
        tensors = self.request.tensors
        types = {tensor.dtype.to_real() for tensor in tensors} | types_in(graph)
        dtype = max(types, key=lambda dtype: torch.finfo(dtype).eps)
        v = random_vector(ledger.G, spread=1e6 if torch.finfo(dtype).bits > 16 else 1e3)
        is_linear = not (way.key.is_hooked or holds_functions(graph))
        ordinary = self.request.ordinary_gradients
        return mismatches(ledger, v, ordinary, dtype, way.plain, is_linear=is_linear)

    def loop(self) -> Loop:
        """One pass per task, by plain autograd."""
        request = self.request
        return loop_over_tasks(
            *(request.objectives, request.tensors, request.scale, request.dtype),
            retain_graph=request.retain_graph,
            beside=self.beside,
        )

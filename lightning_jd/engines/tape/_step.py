"""One step of the tape: walk, plan, then a loop, a program or the rules; certified when due."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_jd.engines._columns import column_count
from lightning_jd.engines._hooks import HookWatch, hook_register
from lightning_jd.engines.tape._agreement import agree, complain_of_program
from lightning_jd.engines.tape._certificate import Mismatch, mismatches, random_vector
from lightning_jd.engines.tape._complaint import complain
from lightning_jd.engines.tape.contributions import rounded
from lightning_jd.engines.tape.graph import Graph, types_in
from lightning_jd.engines.tape.owners import Evidence
from lightning_jd.engines.tape.plan import KnownGraph, Plan, Standing, known_graph, standing_of
from lightning_jd.engines.tape.run import (
    ROWS,
    Collector,
    Compiled,
    Experience,
    Ledger,
    Loop,
    Recording,
    Replay,
    Request,
    can_compile,
    can_free,
    experience_of,
    is_light,
    loop_over_tasks,
    record,
)


class Outcome(NamedTuple):
    """What a step has found.

    Attributes:
        ledger: The Gramian, and what gradients are computed from.
        plan: The plan that was carried out; ``None`` for a plain loop.
        paths: How each reached parameter was dealt with; ``None``: by the rules of the plan.
    """

    ledger: Ledger | Replay | Loop
    plan: Plan | None = None
    paths: Mapping[int, str] | None = None


class Steady(NamedTuple):
    """What a step does if nothing has changed since the last one with such a graph.

    Attributes:
        key: What it depends on beside the graph.
        plan: The plan.
        experience: What steps with this plan have shown, with the program.
        standing: What certificates have shown.
        demoted: Parameters that failed one.
        delivery: What is certified: how gradients are delivered.
        frees: Whether the graph is freed.
    """

    key: Hashable
    plan: Plan
    experience: Experience
    standing: Standing
    demoted: frozenset[int]
    delivery: Hashable
    frees: bool


class Step:
    """Computes the Gramian of one graph.

    Args:
        request: What is asked for.
        collects: Contributions are collected, and nothing is multiplied.
        beside: Other parameters, whose gradients a loop gives, too.
    """

    def __init__(
        self, request: Request, *, collects: bool = False, beside: Sequence[Tensor] = ()
    ) -> None:
        self.request, self.collects, self.beside = request, collects, beside
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
        # hooks are not in the signature: what was certified without them is certified anew
        hooks = hook_register.of(max([graph.nodes[k]._sequence_nr() for k, _ in graph.roots]))
        if (outcome := self.again(graph, known, hooks.total)) is not None:
            return outcome
        evidence = Evidence(graph, request.instances, request.scale)
        standing = standing_of(known, evidence.m, hooks.total)
        while True:
            plan = known.plan(evidence, standing.demoted)
            if not plan.reached:
                raise request.nothing_reached()
            experience = experience_of(plan)
            experience.steps += 1
            may_replay = not self.collects and self.may_replay(plan)
            program = self.program(graph, plan) if may_replay else None
            frees = not (self.collects or request.retain_graph)
            frees = frees and (program is not None or can_free(graph, plan))
            frees = frees and (request.memory == "fast" or is_light(plan))
            # What is certified is what runs: that depends on what is kept for the gradients, on
            # hooks on the way, on the order of the sizes, and on whether there is a program.
            sizes = rounded([request.objectives.m, plan.activations])
            keeps = request.memory == "fast" or frees
            delivery = (request.memory, keeps, hooks.total, sizes, program is not None)
            is_due = request.check == "always" or standing.is_due(delivery, request.check_every)
            interpret = partial(self.interpret, graph, known, plan)
            if not is_due or request.check == "off":
                standing.passed(delivery)
                if program and (replay := self.replay(*program, graph, frees=frees)):
                    if known.is_static:
                        key = self.key(hooks.total)
                        known.steady = Steady(
                            *(key, plan, experience, standing, standing.demoted, delivery, frees)
                        )
                    return Outcome(replay, plan)
                if may_replay and experience.steps > 1:
                    return Outcome(self.recorded(graph, plan), plan)
                kind = Collector if self.collects else Ledger
                empty = request.empty_ledger(kind, keeps=keeps, once=frees)
                ledger = interpret(empty, frees=frees)
                return Outcome(ledger, plan, self.paths)
            watch = HookWatch(hooks.numbers)
            with watch.watched():
                ledger = interpret(request.empty_ledger(keeps=keeps, notes=True))
            with watch.silenced():
                wrong = self.mismatches(ledger, graph, plan)
                if wrong == [] and program is not None:
                    self.compare(*program, graph, plan, ledger)
            if wrong:
                complain(wrong, [n for n, _ in request.named], raises=request.check == "raise")
                standing.demoted |= {p for mismatch in wrong for p in mismatch.parameters}
                continue
            if wrong is not None:
                standing.passed(delivery)
            ledger.shares.clear()
            if self.collects:
                ledger = interpret(request.empty_ledger(Collector))
            return Outcome(ledger, plan, self.paths)

    def key(self, hooks: int) -> Hashable:
        """What a step depends on beside its graph."""
        request = self.request
        asked = request.memory, request.check, request.retain_graph, self.collects
        return request.key, asked, request.instances is None, hooks

    def again(self, graph: Graph, known: KnownGraph, hooks: int) -> Outcome | None:
        """Do what the last step with such a graph did, if that was to run a program."""
        steady: Steady | None = known.steady
        if steady is None or steady.key != self.key(hooks):
            return None
        _, plan, experience, standing, demoted, delivery, frees = steady
        request, compiled = self.request, experience.compiled
        is_due = request.check == "always" or standing.is_due(delivery, request.check_every)
        if compiled is None or standing.demoted != demoted or (is_due and request.check != "off"):
            return None
        inputs = compiled.inputs(graph, request.key)
        if inputs is None:
            return None
        standing.passed(delivery)
        replay = self.replay(compiled, inputs, graph, frees=frees)
        return None if replay is None else Outcome(replay, plan)

    def interpret(
        self,
        graph: Graph,
        known: KnownGraph,
        plan: Plan,
        ledger: Ledger,
        *,
        frees: bool = False,
    ) -> Ledger:
        """Ask the rules."""
        recording = Recording(graph, known, plan, self.request, retain_graph=not frees)
        recording.run(ledger)
        ledger.close()
        self.paths = recording.paths
        return ledger

    def may_replay(self, plan: Plan) -> bool:
        """Whether a step like this one can be a program."""
        instances, memory = self.request.instances, self.request.memory
        if instances is None or instances.ndim > 1 or memory == "low":
            return False
        return can_compile(plan, instances)

    def program(self, graph: Graph, plan: Plan) -> tuple[Compiled, list[Tensor]] | None:
        """The program for a plan, if there is one, and what it needs of this graph."""
        compiled = experience_of(plan).compiled
        inputs = None if compiled is None else compiled.inputs(graph, self.request.key)
        return None if compiled is None or inputs is None else (compiled, inputs)

    def recorded(self, graph: Graph, plan: Plan) -> Ledger:
        """A step with a plan that has been met before: it may be met again."""
        request, experience = self.request, experience_of(plan)
        ledger, compiled = record(graph, plan, request)
        experience.compiled, experience.is_unrecordable = compiled, compiled is None
        return ledger

    def replay(
        self, compiled: Compiled, inputs: list[Tensor], graph: Graph, *, frees: bool
    ) -> Replay | None:
        """Run a program."""
        assert self.request.instances is not None
        losses, scale = self.request.instances, self.request.scale
        return compiled.run(graph, inputs, losses, scale, retain_graph=not frees)

    def compare(
        self,
        compiled: Compiled,
        inputs: list[Tensor],
        graph: Graph,
        plan: Plan,
        ledger: Ledger,
    ) -> None:
        """Forget a program that does something else than the rules that it was recorded from."""
        replay = self.replay(compiled, inputs, graph, frees=False)
        if replay is None or not agree(replay, ledger, self.request.tensors):
            experience = experience_of(plan)
            experience.compiled, experience.is_unrecordable = None, True
            complain_of_program()

    def mismatches(self, ledger: Ledger, graph: Graph, plan: Plan) -> list[Mismatch] | None:
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
        eps = max(torch.finfo(dtype).eps for dtype in types)
        v = random_vector(ledger.G, spread=1e3 if eps > 1e-5 else 1e6)
        sizes = {k: column_count(tensor) for k, tensor in enumerate(tensors)}
        wrong = mismatches(ledger, v, self.request.ordinary_gradients, sizes, eps)
        if wrong is None:
            return None
        return [found for found in wrong if not set(found.parameters) <= plan.by_rows]

    def loop(self) -> Loop:
        """One pass per task, by plain autograd."""
        request = self.request
        return loop_over_tasks(
            *(request.objectives, request.tensors, request.scale, request.dtype),
            retain_graph=request.retain_graph,
            beside=self.beside,
        )


def may_loop(request: Request) -> bool:
    """Whether tasks are so small that a plain loop over them is fastest."""
    objectives, tensors, m = request.objectives, request.tensors, request.objectives.m
    if isinstance(objectives.losses, Tensor) or m == 1 or request.check == "always":
        return False
    if request.memory == "low" or m * sum([tensor.numel() for tensor in tensors]) > ROWS:
        return False
    return all(t.device == objectives.device and not t.is_complex() for t in tensors)

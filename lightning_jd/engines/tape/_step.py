"""One step of the tape: walk, plan, then a loop, a program or the rules; certified when due."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from math import inf, prod
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_jd.engines._hooks import hook_history
from lightning_jd.engines.tape._compare import (
    Mismatch,
    ProgramResult,
    certificate_vector,
    mismatches,
    report,
)
from lightning_jd.engines.tape._extracts import Extract
from lightning_jd.engines.tape._parameter_hooks import altered_placements, hooked_operations
from lightning_jd.engines.tape.graph import VIEWS, Graph, holds_functions, may_be_hooked, walk
from lightning_jd.engines.tape.plan import Known, Plan, memory
from lightning_jd.engines.tape.run import (
    MAX_LOOP_NUMBERS,
    Collector,
    Ledger,
    Loop,
    Replay,
    Request,
    can_trace,
    loop_over_tasks,
    run_plan,
    trace,
)

#: What low memory may keep, as a share of parameters and of the results of all operations.
_SHARE = 0.3


class Outcome(NamedTuple):
    """The result of a step.

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


def run_step(
    request: Request,
    *,
    collects: bool = False,
    beside: Sequence[Tensor] = (),
    extract: Extract | None = None,
) -> Outcome:
    """Compute the Gramian of one graph by the fastest exact way, or collect its contributions.

    Args:
        request: The request.
        collects: Whether contributions are collected.
        beside: Other parameters, whose gradients a loop gives, too.
        extract: Takes the contributions, which are kept only if they are collected, too.

    Raises:
        GraphError: If no loss depends on a parameter, or autograd cannot see through a
            checkpoint, or a certificate fails and ``check`` is ``"raise"``.
    """
    if not (collects or extract) and may_loop(request):
        loop = loop_over_tasks(
            *(request.objectives, request.tensors, request.scale, request.dtype),
            retain_graph=request.retain_graph,
            beside=beside,
        )
        if not loop.reached:
            raise request.nothing_reached()
        return Outcome(loop, paths=dict.fromkeys(loop.reached, "rows"))
    graph = walk(request.objectives, request.tensors)
    known = memory.known(graph, request.types)
    outcome = None
    while outcome is None:  # once more, if a certificate has failed
        step = Step(request, graph, known, collects=collects, extract=extract)
        outcome = step.certified() if step.is_due else step.uncertified()
    return outcome


def may_loop(request: Request) -> bool:
    """Whether tasks are so small that a plain loop over them is fastest."""
    objectives, tensors, m = request.objectives, request.tensors, request.objectives.m
    if isinstance(objectives.losses, Tensor) or m == 1 or request.options.check == "always":
        return False
    numbers = m * sum([tensor.numel() for tensor in tensors])
    if request.options.memory == "low" or numbers > MAX_LOOP_NUMBERS:
        return False
    return all(t.device == objectives.device and not t.is_complex() for t in tensors)


class Step:
    """What a step does, decided before anything is computed.

    Attributes:
        plan: The plan.
        is_due: Whether the step must be certified.
    """

    def __init__(
        self,
        request: Request,
        graph: Graph,
        known: Known,
        *,
        collects: bool,
        extract: Extract | None,
    ) -> None:
        self.request, self.graph, self.known = request, graph, known
        self.keeps, self.collects, self.extract = collects, collects or extract is not None, extract
        self.is_hooked = hook_history.count(graph.nodes) > 0
        self.certificates = memory.certificates(known, (request.model, self.is_hooked))
        row_by_row = self.certificates.row_by_row
        plan = known.plan(graph, request.owners, row_by_row)
        if not plan.reached:
            raise request.nothing_reached()
        if self.is_hooked and (hooked := hooked_operations(graph, plan)):
            plan = known.plan(graph, request.owners, row_by_row | hooked)
        self.plan = plan
        is_low = request.options.memory == "low"
        is_simple = not (self.collects or self.is_hooked)
        self._is_traceable = is_simple and not is_low
        self._is_traceable &= plan.program is not None or can_trace(plan, request.instances)
        #: What the program reads, if there is a program that fits.
        self._inputs: list[Tensor] | None = None
        if self._is_traceable and plan.program is not None:
            self._inputs = plan.program.inputs(graph, request.scale)
        has_program = self._inputs is not None
        self._frees = is_simple and not request.retain_graph
        self._frees = self._frees and (has_program or can_free(graph, plan))
        self._frees = self._frees and (not is_low or is_light(plan))
        # An ordinary backward pass gives the combined rows only where everything is linear.
        self._keeps = not is_low or self._frees or bool(row_by_row) or not self.is_linear
        # What is captured inside of a graph is captured before hooks, see docs/certificates.md.
        by_rows = plan.reached if request.instances is None else plan.by_rows
        self._plain = by_rows if self.is_hooked else by_rows & row_by_row
        # What is certified is what runs: that depends on what is kept for the gradients, on the
        # order of the sizes, and on whether there is a program.
        sizes = request.objectives.m.bit_length(), plan.activations.bit_length()
        extracted = extract and extract.name
        self._delivery = request.options.memory, self._keeps, sizes, has_program, extracted
        self.is_due = self._is_due()

    def _is_due(self) -> bool:
        check = self.request.options.check
        if check == "off" or self.plan.reached <= self._plain:
            return False
        if check == "always" or self.is_hooked:  # a hook may begin to change gradients in any step
            return True
        return self.certificates.is_due(self._delivery, self.request.options.check_every)

    @property
    def is_linear(self) -> bool:
        """Whether gradients are known to be linear in the losses."""
        return not (self.is_hooked or holds_functions(self.graph))

    def uncertified(self) -> Outcome:
        """Run the program, trace it, or run the rules."""
        request, plan = self.request, self.plan
        if request.options.check != "off":
            self.certificates.steps[self._delivery] += 1
        if (replay := self._replay(retain_graph=not self._frees)) is not None:
            return Outcome(replay, plan)
        plan.steps += 1
        if self._is_traceable and plan.steps > 1:  # it was met before: it may be again
            ledger, plan.program = trace(self.graph, plan, request)
            plan.is_traceable = plan.program is not None
            return Outcome(ledger, plan)
        ledger = request.empty_ledger(keeps=self._keeps, once=self._frees)
        if self.collects:
            ledger = self._collector()
        return self._by_rules(ledger, retain_graph=not self._frees)

    def certified(self) -> Outcome | None:
        """Run the rules, and compare them, and the program, with an ordinary pass.

        Returns:
            ``None`` if parameters failed: another plan computes them row by row.
        """
        request, plan = self.request, self.plan
        plan.steps += 1
        result = self._program_result()  # before the rules keep what they need
        outcome = self._by_rules(request.empty_ledger(keeps=self._keeps, notes=True))
        assert isinstance(outcome.ledger, Ledger)
        wrong = self._mismatches(outcome.ledger, result)
        if wrong:
            self._report(wrong)
            failed = {p for found in wrong if found.what != "program" for p in found.parameters}
            if failed:  # a hook on an activation changes all that is below it
                self.certificates.row_by_row |= plan.reached if self.is_hooked else failed
                return None
            plan.program, plan.is_traceable = None, False
        G = None if wrong is None else outcome.ledger.G
        outcome.ledger.shares.clear()
        if self.collects:
            outcome = self._by_rules(self._collector(G))
        if self.extract is not None and self.extract.wrong:
            failed = set(self.extract.wrong)
            self._report([Mismatch((p,), self.extract.name, inf) for p in sorted(failed)])
            self.certificates.row_by_row |= failed
            return None
        if wrong is not None:
            self.certificates.steps[self._delivery] += 1
        return outcome

    def _report(self, wrong: Sequence[Mismatch]) -> None:
        names, raises = [n for n, _ in self.request.named], self.request.options.check == "raise"
        report(wrong, names, is_linear=self.is_linear, raises=raises)

    def _collector(self, certified: Tensor | None = None) -> Ledger:
        """The ledger that takes the contributions, which are compared if G is certified."""
        take = None
        if self.extract is not None:
            self.extract.begin(certified)
            take = self.extract.take
        return self.request.empty_ledger(partial(Collector, take=take), keeps=self.keeps)

    def _by_rules(self, ledger: Ledger, *, retain_graph: bool = True) -> Outcome:
        paths = run_plan(
            *(self.graph, self.known, self.plan, self.request, ledger),
            plain=self._plain,
            retain_graph=retain_graph,
        )
        ledger.close()
        return Outcome(ledger, self.plan, paths, self.is_hooked)

    def _replay(self, *, retain_graph: bool) -> Replay | None:
        """Run the program, if there is one that fits."""
        if self._inputs is None:
            return None
        found: Replay | None = self.plan.program.run(
            self.graph, self.request, self._inputs, retain_graph=retain_graph
        )
        return found

    def _program_result(self) -> ProgramResult | None:
        replay = self._replay(retain_graph=True)
        return None if replay is None else ProgramResult.of(replay, self._vector(replay.G))

    def _vector(self, G: Tensor) -> Tensor:
        losses = self.request.instances
        columns = 1 if losses is None or losses.ndim == 1 else losses.shape[1]
        return certificate_vector(G, self._dtype, is_linear=self.is_linear, columns=columns)

    def _mismatches(self, ledger: Ledger, program: ProgramResult | None) -> list[Mismatch] | None:
        """The result of a certificate.

        Returns:
            ``None`` where something is not finite, so that nothing can be compared: the next step
            is certified instead.
        """
        if not bool(torch.isfinite(ledger.G).all()):
            return None
        if self.is_hooked:
            request = self.request
            found = altered_placements(
                *(self.graph, self.plan, request.tensors),
                *(ledger.shares, request.scale, self._plain),
            )
            if found:
                return found
        if program is None or not bool(torch.isfinite(program.v).all()):
            v = self._vector(ledger.G)
        else:
            v = program.v
        ordinary, chosen = self.request.ordinary_gradients, self.plan.reached - self._plain
        return mismatches(ledger, v, ordinary, self._dtype, chosen, program=program)

    @property
    def _dtype(self) -> torch.dtype:
        """The least precise type that takes part."""
        # Under autocast, parameters and losses are precise, but what is between them is not.
        types = {tensor.dtype for tensor in self.request.tensors} | self.graph.types
        return max(_real(types), key=lambda dtype: torch.finfo(dtype).eps)


def can_free(graph: Graph, plan: Plan) -> bool:
    """Whether the graph can be freed during the Gramian pass."""
    if plan.computed or plan.by_rows:
        return False  # computations on parameters, and rows, are differentiated after the pass
    for position, use in enumerate(plan.uses):
        if plan.refused.get(position, True):
            return False  # unknown, or the operation is run once more after the pass
        node = graph.nodes[use.node]
        if any(may_be_hooked(node, name) for name in plan.rule(use).saved):
            return False  # what is recomputed is given out once per pass
    return True


def is_light(plan: Plan) -> bool:
    """Whether one pass that frees the graph takes less memory than two of which the last does.

    The first of two passes has to leave all activations in place. One pass alone has to keep the
    gradients at the output of every operation with parameters, or the rows of these parameters;
    for images these are few, for long sequences many.

    Args:
        plan: The plan; all uses must have a rule.
    """
    kept = sum(_numbers(plan, position) for position in range(len(plan.uses)))
    numbers = sum(
        prod(shape)
        for record in plan.records
        if record.name not in VIEWS
        for shape in record.shapes
    )
    return kept <= _SHARE * numbers


def _numbers(plan: Plan, position: int) -> int:
    """How many numbers are kept for the gradients of a use: the rows, or what comes to it."""
    use, arrangement = plan.uses[position], plan.arrangements[position]
    assert arrangement is not None
    rows = arrangement.m * sum(placement.size for placement in use.placements)
    return min(rows, prod(plan.records[use.node].shapes[0]))


def _real(types: Collection[torch.dtype]) -> set[torch.dtype]:
    """The floating-point types of some types."""
    return {dtype.to_real() for dtype in types if dtype.is_floating_point or dtype.is_complex}

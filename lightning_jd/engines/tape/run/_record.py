"""Interprets a plan once while everything that is done with tensors is recorded."""

from __future__ import annotations

from itertools import chain
from math import prod
from typing import Any

import torch
from torch import Tensor

from lightning_jd.engines._columns import from_columns
from lightning_jd.engines.tape.contributions import pieces
from lightning_jd.engines.tape.graph import Graph
from lightning_jd.engines.tape.plan import Plan
from lightning_jd.engines.tape.program import Program, Recorder, UnrecordableError
from lightning_jd.engines.tape.run._assembly import Assembly
from lightning_jd.engines.tape.run._compiled import Compiled, Read, is_one, look_of
from lightning_jd.engines.tape.run._experience import experience_of
from lightning_jd.engines.tape.run._gramian_sum import Ledger
from lightning_jd.engines.tape.run._instances import Interpreter
from lightning_jd.engines.tape.run._pass import Cotangents, captured
from lightning_jd.engines.tape.run._request import Request


def can_compile(plan: Plan, losses: Tensor) -> bool:
    """Whether a step is a pass and products of what it meets, and its gradients are small.

    Args:
        plan: The plan.
        losses: The losses, for their device: where launches are what counts, more may be held.
    """
    experience = experience_of(plan)
    if experience.compiled is not None:
        return True
    if plan.computed or plan.by_rows or not plan.uses or plan.sparse:
        return False
    if experience.is_unrecordable or any(experience.refused.values()):
        return False
    numbers = sum(prod(plan.records[node].shapes[k]) for node, k in plan.outputs)
    return 4 * numbers <= pieces(losses).captured


class _Reads:
    """What rules read from a graph; tensors among it are announced to a recorder."""

    def __init__(self, graph: Graph, recorder: Recorder) -> None:
        self._graph, self._recorder = graph, recorder
        self.found: dict[Read, Any] = {}

    def __call__(self, node: int, name: str) -> Any:
        read = Read(node, name)
        if read not in self.found:
            with self._recorder.paused():
                value = read.value(self._graph)
            if isinstance(value, (tuple, list)) and any(isinstance(v, Tensor) for v in value):
                raise UnrecordableError("several saved tensors under one name")
            is_tensor = isinstance(value, Tensor)
            self.found[read] = self._recorder.input(value) if is_tensor else value
        return self.found[read]


class _Hidden:
    """Stands for a node while a step is recorded: what is read from it could not be checked."""

    def __getattr__(self, name: str) -> Any:
        raise UnrecordableError("a rule that looks at the node itself")


def record(graph: Graph, plan: Plan, request: Request) -> tuple[Ledger, Compiled | None]:
    """Interpret a plan, and record what that does.

    Args:
        graph: The graph; it is kept.
        plan: The plan.
        request: What is asked for.

    Returns:
        The ledger of the step, and the program, unless something depends on the values of tensors.
    """
    cotangents = _captured(graph, plan, request)
    looks = tuple(
        None if D is None else look_of(D) for several in cotangents.values() for D in several
    )
    recorder = Recorder()
    reads = _Reads(graph, recorder)
    recorded = request.empty_ledger()
    try:
        program, reached = _recorded(recorder, reads, graph, plan, cotangents, request, recorded)
    except UnrecordableError:
        again = request.empty_ledger()
        assembly = Assembly(plan, again)
        interpreter = Interpreter(graph, plan, len(again.G), again.G.dtype, request.scale)
        cotangents = _captured(graph, plan, request)
        interpreter.interpret(_as_asked(plan, cotangents), assembly.deliver)
        assembly.close()
        again.close()
        return again, None
    finally:
        recorder.close()
    found = reads.found.items()
    return recorded, Compiled(
        program,
        request.key,
        tuple(
            (read.node, read.attribute, value.shape, value.stride(), value.dtype)
            for read, value in found
            if isinstance(value, Tensor)
        ),
        # all that a node saves is hooked, or nothing
        tuple({read.node: read.raw for read, v in found if isinstance(v, Tensor)}.items()),
        tuple(
            (read.node, read.attribute, value)
            for read, value in found
            if not isinstance(value, Tensor)
        ),
        plan.outputs,
        looks,
        reached,
    )


def _captured(graph: Graph, plan: Plan, request: Request) -> dict[int, Cotangents]:
    losses, scale = request.instances, request.scale
    assert losses is not None
    weights = None if is_one(scale) else torch.ones_like(losses) * scale
    return captured(graph, losses, weights, plan.outputs)


def _recorded(
    recorder: Recorder,
    reads: _Reads,
    graph: Graph,
    plan: Plan,
    cotangents: dict[int, Cotangents],
    request: Request,
    ledger: Ledger,
) -> tuple[Program, tuple[int, ...]]:
    announced = {}
    for node in list(cotangents):  # each is free as soon as no rule needs it any more
        several = cotangents.pop(node)
        announced[node] = tuple(None if D is None else recorder.input(D) for D in several)
    given = [recorder.slot_of(D) for D in chain(*announced.values()) if D is not None]
    scale, parameters = request.scale, request.tensors
    if isinstance(scale, Tensor):
        scale = recorder.input(scale)
    interpreter = Interpreter(graph, plan, len(ledger.G), ledger.G.dtype, scale)
    interpreter.read, interpreter.node = reads, _Hidden()
    assembly = Assembly(plan, ledger)
    with recorder.recording():
        for node in list(_as_asked(plan, announced)):
            if interpreter.consume(node, announced.pop(node), assembly.deliver):
                raise UnrecordableError("an operation without a rule")
        assembly.close()
        ledger.close()
    weights = recorder.input(torch.ones_like(ledger.G[0]))
    recorder.is_late = True
    with recorder.recording():
        gradients = ledger.gradients(weights)
        shaped = [from_columns(columns, parameters[k]) for k, columns in gradients.items()]
    saved = [recorder.slot_of(value) for value in reads.found.values() if isinstance(value, Tensor)]
    factor = [recorder.slot_of(scale)] if isinstance(scale, Tensor) else []
    program = Program(
        recorder,
        recorder.slot_of(weights),
        recorder.slot_of(ledger.G),
        [recorder.slot_of(gradient) for gradient in shaped],
        order=saved + given + factor,
    )
    return program, tuple(gradients)


def _as_asked(plan: Plan, cotangents: dict[int, Cotangents]) -> dict[int, Cotangents]:
    """In the order in which the rules were asked before, so that sums round as they did."""
    before = [node for node in experience_of(plan).order if node in cotangents]
    return {node: cotangents[node] for node in dict.fromkeys([*before, *cotangents])}

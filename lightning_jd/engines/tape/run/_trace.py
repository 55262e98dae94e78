"""Interprets a plan, and traces what that does with tensors."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import torch
from torch import Tensor

from lightning_jd.engines._columns import from_columns
from lightning_jd.engines._objectives import is_one
from lightning_jd.engines.tape.contributions import pieces
from lightning_jd.engines.tape.graph import Graph
from lightning_jd.engines.tape.plan import Plan
from lightning_jd.engines.tape.run._capture import Cotangents, captured
from lightning_jd.engines.tape.run._interpreter import Interpreter
from lightning_jd.engines.tape.run._ledger import Assembly, Ledger
from lightning_jd.engines.tape.run._program import Program, UntraceableError
from lightning_jd.engines.tape.run._request import Request
from lightning_jd.engines.tape.run._traced_step import Read, TracedStep, constant_of, look_of


def can_trace(plan: Plan, losses: Tensor | None) -> bool:
    """Whether a step is a pass and products of what it meets, and its gradients are small."""
    if losses is None or losses.ndim > 1:
        return False
    if plan.computed or plan.by_rows or not plan.uses or plan.sparse:
        return False
    if not plan.is_traceable or any(plan.refused.values()):
        return False
    numbers = sum(prod(plan.records[node].shapes[k]) for node, k in plan.outputs)
    return 4 * numbers <= pieces(losses).captured


class _Reads:
    """What rules read from a graph, by node and name; while a step is traced, its stand-ins."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.found: dict[Read, Any] = {}

    def __call__(self, node: int, name: str) -> Any:
        read = Read(node, name)
        if read not in self.found:
            self.found[read] = read.value(self._graph)
        return self.found[read]


class _Hidden:
    """Stands for a node while a step is traced: later steps could not check what it reads."""

    def __getattr__(self, name: str) -> Any:
        raise UntraceableError("a rule that looks at the node itself")


def trace(graph: Graph, plan: Plan, request: Request) -> tuple[Ledger, TracedStep | None]:
    """Interpret a plan, and trace what that does with tensors.

    Returns:
        The ledger of the step, and the program, unless something depends on the values of tensors.
    """
    losses, scale = request.instances, request.scale
    assert losses is not None
    weights = None if is_one(scale) else torch.ones_like(losses) * scale
    cotangents = captured(graph, losses, weights, plan.outputs)
    looks = tuple(
        None if D is None else look_of(D) for several in cotangents.values() for D in several
    )
    reads, ledger = _Reads(graph), request.empty_ledger()
    _interpret(graph, plan, scale, reads, cotangents, ledger)
    found = dict(reads.found)
    if any(isinstance(v, (tuple, list)) and _holds_tensor(v) for v in found.values()):
        return ledger, None
    tensors = {read: value for read, value in found.items() if isinstance(value, Tensor)}
    present = [D for several in cotangents.values() for D in several if D is not None]
    factor = [scale] if isinstance(scale, Tensor) else []
    reached: list[int] = []

    def step(given: list[Tensor], weights: Tensor) -> tuple[Tensor, list[Tensor]]:
        rest = iter(given)
        reads.found.update({read: next(rest) for read in tensors})
        stand_ins = {
            node: tuple([None if D is None else next(rest) for D in several])
            for node, several in cotangents.items()
        }
        traced = request.empty_ledger()
        _interpret(graph, plan, next(rest, scale), reads, stand_ins, traced, _Hidden())
        if reads.found.keys() != found.keys():
            raise UntraceableError("a rule that reads something else")
        gradients = traced.gradients(weights)
        reached[:] = gradients
        shaped = [from_columns(gradients[k], request.tensors[k]) for k in reached]
        return traced.G, shaped

    try:
        inputs = [*tensors.values(), *present, *factor]
        program = Program(step, inputs, torch.ones_like(ledger.G[0]))
    except UntraceableError:
        return ledger, None
    return ledger, TracedStep(
        program,
        constant_of(request.scale),
        tuple((r.node, r.attribute, v.shape, v.stride(), v.dtype) for r, v in tensors.items()),
        # all that a node saves is hooked, or nothing
        tuple({read.node: read.raw for read in tensors}.items()),
        tuple((r.node, r.attribute, v) for r, v in found.items() if r not in tensors),
        plan.outputs,
        looks,
        tuple(reached),
    )


def _holds_tensor(values: Iterable[Any]) -> bool:
    return any(isinstance(value, Tensor) for value in values)


def _interpret(
    graph: Graph,
    plan: Plan,
    scale: float | Tensor,
    reads: _Reads,
    cotangents: dict[int, Cotangents],
    ledger: Ledger,
    node: _Hidden | None = None,
) -> None:
    """Fill a ledger, in the order in which the rules were met before, so that sums round alike."""
    interpreter = Interpreter(graph, plan, len(ledger.G), ledger.G.dtype, scale)
    interpreter.read, interpreter.node = reads, node
    assembly = Assembly(plan, ledger)
    before = [k for k in plan.node_order if k in cotangents]
    ordered = {k: cotangents[k] for k in dict.fromkeys([*before, *cotangents])}
    interpreter.interpret(ordered, assembly.deliver)
    if node is not None and interpreter.local:
        raise UntraceableError("an operation without a rule")
    assembly.close()
    ledger.close()

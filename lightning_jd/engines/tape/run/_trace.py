"""A step as a program: traced once, replayed while its inputs have the same metadata."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from lightning_jd.engines._objectives import is_one
from lightning_jd.engines._parameters import from_columns
from lightning_jd.engines.tape.contributions import pieces
from lightning_jd.engines.tape.graph import (
    SHOWS_HOOKS,
    Cotangents,
    Edge,
    Graph,
    captured,
    gradients_of,
    in_own_pass,
)
from lightning_jd.engines.tape.plan import Plan
from lightning_jd.engines.tape.run._interpreter import Interpreter
from lightning_jd.engines.tape.run._ledger import Assembly, Ledger
from lightning_jd.engines.tape.run._program import Program, UntraceableError
from lightning_jd.engines.tape.run._request import Request

#: Shape, strides, type and device of a tensor.
Metadata = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device]
#: Something that autograd saved: the position of the node, and its name there.
Read = tuple[int, str]


def metadata_of(tensor: Tensor) -> Metadata:
    """What must be the same in every step with the same program."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


@dataclass(frozen=True)
class TracedStep:
    """A program, the origin of its inputs, and their metadata.

    Attributes:
        program: The two functions.
        scale: The factor that is part of the program; ``"tensor"`` if it is an input.
        tensors: Saved tensors, by node and attribute, and their metadata.
        hooks: Where each node would keep a hook that recomputes or loads what it saved.
        arguments: Other saved values, by node and attribute.
        edges: Where gradients are captured.
        cotangents: Their metadata; ``None`` where no loss arrives.
        reached: The parameters that have gradients, in the order of the program.
    """

    program: Program
    scale: float | str
    tensors: tuple[tuple[int, str, Metadata], ...]
    hooks: tuple[tuple[int, str], ...]
    arguments: tuple[tuple[int, str, Any], ...]
    edges: tuple[Edge, ...]
    cotangents: tuple[Metadata | None, ...]
    reached: tuple[int, ...]

    def inputs(self, graph: Graph, scale: float | Tensor) -> list[Tensor] | None:
        """The saved tensors of a step; ``None`` if something is not as it was traced."""
        if constant_of(scale) != self.scale:
            return None
        nodes = graph.nodes
        for node, attribute, expected in self.arguments:
            if getattr(nodes[node], attribute) != expected:
                return None
        found: list[Tensor] = []

        def read() -> None:
            for node, attribute, *_ in self.tensors:
                found.append(getattr(nodes[node], attribute))

        if not SHOWS_HOOKS:
            in_own_pass(read)
        elif any(getattr(nodes[node], raw).unpack_hook is not None for node, raw in self.hooks):
            return None
        else:
            read()
        expected = [metadata for *_, metadata in self.tensors]
        return found if [metadata_of(tensor) for tensor in found] == expected else None

    def run(
        self, graph: Graph, request: Request, inputs: list[Tensor], *, retain_graph: bool
    ) -> Replay | None:
        """One pass and the first function.

        Returns:
            ``None`` if something is not as it was traced; the graph is kept then.
        """
        losses, scale = request.instances, request.scale
        assert losses is not None
        weights = None if is_one(scale) else torch.ones_like(losses) * scale
        keep = retain_graph or None in self.cotangents
        nodes = graph.nodes
        places = [GradientEdge(nodes[node], output) for node, output in self.edges]
        cotangents = gradients_of([losses], [weights], places, retain_graph=keep)
        for D, metadata in zip(cotangents, self.cotangents, strict=True):
            if metadata is None:
                if D is not None:
                    return None
            elif D is not None and D.stride() == metadata[1] and D.dtype == metadata[2]:
                inputs.append(D)
            else:
                inputs.append(_like(D, metadata))
        if isinstance(scale, Tensor):
            inputs.append(scale)
        del cotangents
        G, *kept = self.program.assemble(inputs)
        return Replay(G, kept, self)


def _like(D: Tensor | None, metadata: Metadata) -> Tensor:
    """A gradient in the memory order and type of the trace; one that is missing is zero."""
    shape, strides, dtype, device = metadata
    if 0 in strides:  # expanded; what can be done with such a tensor can be done with a dense one
        dense = torch.zeros(shape, dtype=dtype, device=device)
        return dense if D is None else dense.copy_(D)
    ordered = torch.empty_strided(shape, strides, dtype=dtype, device=device)
    return ordered.zero_() if D is None else ordered.copy_(D)


@dataclass
class Replay:
    """The Gramian of a step, and what the second function needs for the gradients."""

    G: Tensor
    kept: list[Tensor]
    traced: TracedStep

    def gradients(self, weights: Tensor) -> dict[int, Tensor]:
        """The gradients of the reached parameters, in their shape and type."""
        found = self.traced.program.replay([weights, *self.kept])
        return dict(zip(self.traced.reached, found, strict=True))


def constant_of(scale: float | Tensor) -> float | str:
    """The factor as far as it is a constant of a program."""
    return "tensor" if isinstance(scale, Tensor) else scale


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
        if (node, name) not in self.found:
            self.found[node, name] = getattr(self._graph.nodes[node], "_saved_" + name)
        return self.found[node, name]


class _Hidden:
    """Stands for a node in a trace: what is read from it could not be checked in later steps."""

    def __getattr__(self, name: str) -> Any:
        raise UntraceableError("a rule that reads from the node itself")


def trace(graph: Graph, plan: Plan, request: Request) -> tuple[Ledger, TracedStep | None]:
    """Interpret a plan, and trace what that does with tensors.

    Returns:
        The ledger of the step, and the program, unless something depends on the values of tensors.
    """
    losses, scale = request.instances, request.scale
    assert losses is not None
    weights = None if is_one(scale) else torch.ones_like(losses) * scale
    cotangents = captured(graph, losses, weights, plan.outputs)
    reads, ledger = _Reads(graph), request.empty_ledger()
    _interpret(graph, plan, request, scale, reads, cotangents, ledger)
    found = dict(reads.found)
    lists = [value for value in found.values() if isinstance(value, (tuple, list))]
    if any(isinstance(value, Tensor) for values in lists for value in values):
        return ledger, None
    tensors = {read: value for read, value in found.items() if isinstance(value, Tensor)}
    arriving = [D for several in cotangents.values() for D in several]
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
        _interpret(graph, plan, request, next(rest, scale), reads, stand_ins, traced, _Hidden())
        if reads.found.keys() != found.keys():
            raise UntraceableError("a rule that reads something else")
        gradients = traced.gradients(weights)
        reached[:] = gradients
        shaped = [from_columns(gradients[k], request.tensors[k]) for k in reached]
        return traced.G, shaped

    try:
        present = [D for D in arriving if D is not None]
        inputs = [*tensors.values(), *present, *factor]
        program = Program(step, inputs, torch.ones_like(ledger.G[0]))
    except UntraceableError:
        return ledger, None
    return ledger, TracedStep(
        program,
        constant_of(request.scale),
        tuple((node, "_saved_" + name, metadata_of(v)) for (node, name), v in tensors.items()),
        # all that a node saves is hooked, or nothing
        tuple({node: "_raw_saved_" + name for node, name in tensors}.items()),
        tuple(
            (n, "_saved_" + name, v) for (n, name), v in found.items() if (n, name) not in tensors
        ),
        plan.outputs,
        tuple(None if D is None else metadata_of(D) for D in arriving),
        tuple(reached),
    )


def _interpret(
    graph: Graph,
    plan: Plan,
    request: Request,
    scale: float | Tensor,
    reads: _Reads,
    cotangents: dict[int, Cotangents],
    ledger: Ledger,
    node: _Hidden | None = None,
) -> None:
    """Fill a ledger, in the order in which the rules were met before, so that sums round alike."""
    interpreter = Interpreter(graph, plan, request, scale=scale, read=reads, node=node)
    assembly = Assembly(plan, ledger)
    before = [k for k in plan.node_order if k in cotangents]
    ordered = {k: cotangents[k] for k in dict.fromkeys([*before, *cotangents])}
    interpreter.interpret(ordered, assembly.deliver)
    if node is not None and interpreter.local:
        raise UntraceableError("an operation without a rule")
    assembly.close()
    ledger.close()

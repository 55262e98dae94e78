"""A traced step: what its program needs of a graph, and how it is replayed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from lightning_jd.engines._objectives import is_one
from lightning_jd.engines.tape.graph import SHOWS_HOOKS, Edge, Graph, run_engine
from lightning_jd.engines.tape.run._capture import in_own_pass
from lightning_jd.engines.tape.run._program import Program
from lightning_jd.engines.tape.run._request import Request


class Read(NamedTuple):
    """Something that autograd saved.

    Attributes:
        node: The position of the node.
        name: What it is called there.
    """

    node: int
    name: str

    @property
    def attribute(self) -> str:
        """What the node calls it."""
        return "_saved_" + self.name

    @property
    def raw(self) -> str:
        """Where the node keeps it, with its hooks."""
        return "_raw_saved_" + self.name

    def value(self, graph: Graph) -> Any:
        """What this step saved."""
        return getattr(graph.nodes[self.node], self.attribute)


Look = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device]


def look_of(tensor: Tensor) -> Look:
    """Shape, strides, type and device of a tensor."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


@dataclass(frozen=True)
class TracedStep:
    """A program, where its inputs come from, and what they must look like.

    Attributes:
        program: The two functions.
        scale: The factor that is part of the program; ``"tensor"`` if it is an input.
        tensors: Saved tensors, by node and attribute, and what they look like.
        hooks: Where each node would keep a hook that recomputes or loads what it saved.
        arguments: Other saved values, by node and attribute.
        edges: Where gradients are captured.
        cotangents: What they look like; ``None`` where no loss arrives.
        reached: The parameters that have gradients, in the order of the program.
    """

    program: Program
    scale: float | str
    tensors: tuple[tuple[int, str, torch.Size, tuple[int, ...], torch.dtype], ...]
    hooks: tuple[tuple[int, str], ...]
    arguments: tuple[tuple[int, str, Any], ...]
    edges: tuple[Edge, ...]
    cotangents: tuple[Look | None, ...]
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
        for tensor, (_, _, *look) in zip(found, self.tensors, strict=True):
            if [tensor.shape, tensor.stride(), tensor.dtype] != look:
                return None
        return found

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
        cotangents = run_engine([losses], [weights], places, retain_graph=keep)
        for D, look in zip(cotangents, self.cotangents, strict=True):
            if look is None:
                if D is not None:
                    return None
            elif D is not None and D.stride() == look[1] and D.dtype == look[2]:
                inputs.append(D)
            else:
                inputs.append(_like(D, look))
        if isinstance(scale, Tensor):
            inputs.append(scale)
        del cotangents
        G, *kept = self.program.assemble(inputs)
        return Replay(G, kept, self)


def _like(D: Tensor | None, look: Look) -> Tensor:
    """A gradient in the memory order and type of the trace; one that is missing is zero."""
    shape, strides, dtype, device = look
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

"""A recorded step: what its program needs of a graph, and how it is replayed."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from lightning_jd.engines.tape.graph import SHOWS_HOOKS, Edge, Graph, run_engine
from lightning_jd.engines.tape.run._pass import in_own_pass
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
class Compiled:
    """A program, where its inputs come from, and what they must look like.

    Attributes:
        program: The two lists.
        key: What the program depends on beside its inputs.
        tensors: Saved tensors, by node and attribute, and what they look like.
        hooks: Where each node would keep a hook that recomputes or loads what it saved.
        arguments: Other saved values, by node and attribute.
        edges: Where gradients are captured.
        cotangents: What they look like; ``None`` where no loss arrives.
        reached: The parameters that have gradients, in the order of the program.
    """

    program: Program
    key: Hashable
    tensors: tuple[tuple[int, str, torch.Size, tuple[int, ...], torch.dtype], ...]
    hooks: tuple[tuple[int, str], ...]
    arguments: tuple[tuple[int, str, Any], ...]
    edges: tuple[Edge, ...]
    cotangents: tuple[Look | None, ...]
    reached: tuple[int, ...]

    def inputs(self, graph: Graph, key: Hashable) -> list[Tensor] | None:
        """The saved tensors of a step; ``None`` if something is not as it was recorded."""
        if key != self.key:
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

    def run(self, graph: Graph, request: Request, *, retain_graph: bool) -> Replay | None:
        """One pass and the first list.

        Args:
            graph: The graph.
            request: What is asked for, with the losses of instances.
            retain_graph: Whether the graph is kept.

        Returns:
            ``None`` if something is not as it was recorded; the graph is kept then.
        """
        losses, scale, inputs = request.instances, request.scale, self.inputs(graph, request.key)
        if inputs is None or losses is None:
            return None
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
    """A gradient in the memory order and type that were recorded; one that is missing is zero."""
    shape, strides, dtype, device = look
    if 0 in strides:  # expanded; what can be done with such a tensor can be done with a dense one
        dense = torch.zeros(shape, dtype=dtype, device=device)
        return dense if D is None else dense.copy_(D)
    ordered = torch.empty_strided(shape, strides, dtype=dtype, device=device)
    return ordered.zero_() if D is None else ordered.copy_(D)


@dataclass
class Replay:
    """The Gramian of a step, and what the second list needs for the gradients."""

    G: Tensor
    kept: list[Tensor]
    compiled: Compiled

    def gradients(self, weights: Tensor) -> dict[int, Tensor]:
        """The gradients of the reached parameters, in their shape and type."""
        found = self.compiled.program.replay([weights, *self.kept])
        return dict(zip(self.compiled.reached, found, strict=True))


def is_one(scale: float | Tensor) -> bool:
    """Whether nothing is multiplied."""
    return isinstance(scale, (int, float)) and scale == 1

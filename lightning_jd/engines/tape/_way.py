"""How a step gets from its graph to the Gramian, decided before anything is computed."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from torch import Tensor

from lightning_jd.engines._hooks import Registered, hook_register
from lightning_jd.engines.tape.contributions import rounded
from lightning_jd.engines.tape.graph import Graph
from lightning_jd.engines.tape.plan import Plan, Standing
from lightning_jd.engines.tape.run import (
    ROWS,
    Experience,
    Request,
    can_compile,
    can_free,
    experience_of,
    is_light,
)


class Key(NamedTuple):
    """What the way of a step depends on beside its graph.

    Attributes:
        types: Types, device and scale.
        asked: The arguments of the tape.
        collects: Whether contributions are collected.
        hooks: How many hooks may be in the graph.
    """

    types: Hashable
    asked: Hashable
    collects: bool
    hooks: int


class Way(NamedTuple):
    """What a step does, whatever its numbers are.

    Attributes:
        key: What it depends on beside the graph and what certificates have shown.
        plan: The plan.
        experience: What steps with this plan have shown, and the program for it.
        standing: What certificates have shown.
        demoted: The parameters that had failed one when this was decided.
        can_replay: Whether such a step can be a program, ...
        has_program: ... and there is one that fits.
        keeps: Whether contributions are kept for the gradients.
        frees: Whether the graph is freed.
        delivery: What a certificate is about: how the gradients are delivered.
    """

    key: Key
    plan: Plan
    experience: Experience
    standing: Standing
    demoted: frozenset[int]
    can_replay: bool
    has_program: bool
    keeps: bool
    frees: bool
    delivery: Hashable

    def is_repeated(self, key: Key) -> bool:
        """Whether a step with such a graph can run the program as the last one did."""
        return self.has_program and self.key == key and self.standing.demoted == self.demoted

    def is_due(self, request: Request) -> bool:
        """Whether this step must be certified."""
        if request.check in ("always", "off"):
            return request.check == "always"
        return self.standing.is_due(self.delivery, request.check_every)


def hooks_in(graph: Graph) -> Registered:
    """The hooks that may be in a graph: those that were registered since the one before it."""
    return hook_register.of(max([graph.nodes[k]._sequence_nr() for k, _ in graph.roots]))


def key_of(request: Request, *, collects: bool, hooks: int) -> Key:
    """What the way of a step depends on beside its graph."""
    asked = request.memory, request.check, request.retain_graph, request.instances is None
    return Key(request.key, asked, collects, hooks)


def decide(request: Request, graph: Graph, plan: Plan, standing: Standing, key: Key) -> Way:
    """Choose the way of a step with a plan."""
    experience = experience_of(plan)
    can_replay = not key.collects and _can_replay(request, plan)
    program = experience.compiled if can_replay else None
    has_program = program is not None and program.inputs(graph, request.key) is not None
    frees = not (key.collects or request.retain_graph)
    frees = frees and (has_program or can_free(graph, plan))
    frees = frees and (request.memory == "fast" or is_light(plan))
    keeps = request.memory == "fast" or frees
    # What is certified is what runs: that depends on what is kept for the gradients, on hooks on
    # the way, on the order of the sizes, and on whether there is a program.
    sizes = rounded([request.objectives.m, plan.activations])
    delivery = (request.memory, keeps, key.hooks, sizes, has_program)
    known = plan, experience, standing, standing.demoted
    return Way(key, *known, can_replay, has_program, keeps, frees, delivery)


def _can_replay(request: Request, plan: Plan) -> bool:
    """Whether a step with this plan can be a program."""
    instances = request.instances
    if instances is None or instances.ndim > 1 or request.memory == "low":
        return False
    return can_compile(plan, instances)


def may_loop(request: Request) -> bool:
    """Whether tasks are so small that a plain loop over them is fastest."""
    objectives, tensors, m = request.objectives, request.tensors, request.objectives.m
    if isinstance(objectives.losses, Tensor) or m == 1 or request.check == "always":
        return False
    if request.memory == "low" or m * sum([tensor.numel() for tensor in tensors]) > ROWS:
        return False
    return all(t.device == objectives.device and not t.is_complex() for t in tensors)

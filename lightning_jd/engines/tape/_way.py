"""How a step gets from its graph to the Gramian, decided before anything is computed."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from torch import Tensor

from lightning_jd.engines._hooks import hook_history
from lightning_jd.engines.tape.graph import Graph, holds_functions
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
        extract: The name of what is computed of them in place of that.
        is_hooked: Whether foreign hooks may be in the graph.
        model: The parameters.
    """

    types: Hashable
    asked: Hashable
    collects: bool
    extract: str
    is_hooked: bool
    model: Hashable


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
        plain: Parameters whose rows are taken from autograd, with nothing of the tape between.
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
    plain: frozenset[int]
    delivery: Hashable

    def is_repeated(self, key: Key) -> bool:
        """Whether a step with such a graph can run the program as the last one did."""
        return self.has_program and self.key == key and self.standing.demoted == self.demoted

    def is_due(self, request: Request) -> bool:
        """Whether this step must be certified: a hook may begin to change gradients in any."""
        if request.check == "off" or self.plan.reached <= self.plain:
            return False
        if request.check == "always" or self.key.is_hooked:
            return True
        return self.standing.is_due(self.delivery, request.check_every)


def key_of(request: Request, graph: Graph, *, collects: bool, extract: str = "") -> Key:
    """What the way of a step depends on beside its graph."""
    asked = request.memory, request.check, request.retain_graph, request.instances is None
    is_hooked = hook_history.count(graph.nodes) > 0
    return Key(request.key, asked, collects, extract, is_hooked, request.model)


def decide(request: Request, graph: Graph, plan: Plan, standing: Standing, key: Key) -> Way:
    """Choose the way of a step with a plan."""
    experience = experience_of(plan)
    can_replay = not (key.collects or key.is_hooked) and _can_replay(request, plan)
    program = experience.compiled if can_replay else None
    has_program = program is not None and program.inputs(graph, request.key) is not None
    frees = not (key.collects or key.is_hooked or request.retain_graph)
    frees = frees and (has_program or can_free(graph, plan))
    frees = frees and (request.memory == "fast" or is_light(plan))
    # An ordinary backward pass gives the combined rows only where everything is linear.
    is_linear = not (key.is_hooked or standing.demoted or holds_functions(graph))
    keeps = request.memory == "fast" or frees or not is_linear
    # What is captured inside of a graph is captured before hooks, see docs/certificates.md.
    by_rows = plan.reached if request.instances is None else plan.by_rows
    plain = by_rows if key.is_hooked else by_rows & standing.demoted
    # What is certified is what runs: that depends on what is kept for the gradients, on the order
    # of the sizes, and on whether there is a program.
    sizes = request.objectives.m.bit_length(), plan.activations.bit_length()
    delivery = (request.memory, keeps, sizes, has_program, key.extract)
    known = plan, experience, standing, standing.demoted
    return Way(key, *known, can_replay, has_program, keeps, frees, plain, delivery)


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

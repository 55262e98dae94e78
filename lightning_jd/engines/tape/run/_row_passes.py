"""Differentiates all rows, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from lightning_jd.engines._objectives import Objectives, is_one
from lightning_jd.engines.tape.contributions import Contribution, OneRow
from lightning_jd.engines.tape.graph import Graph, gradients_of
from lightning_jd.engines.tape.plan import Plan

Place = Tensor | GradientEdge
#: Numbers that rows of instances may take at the same time (256 MB in float32).
_NUMBERS = 1 << 26


@dataclass(frozen=True)
class Target:
    """Something to differentiate with respect to.

    Attributes:
        parameters: The parameters that it is about.
        node: The number of the operation that consumes them, or of the leaf itself.
        what: Those parameters themselves, or the output of the operation that consumes them.
        row: Turns the gradient at the target into what is held of each row; ``None`` holds it.
        contribution: Turns what is held of all rows into a contribution.
        path: What it is called.
        task: The only row that reaches it, if that is known; no other one is held then.
    """

    parameters: tuple[int, ...]
    node: int
    what: Place
    row: Callable[[Tensor], Tensor] | None
    contribution: Callable[[Tensor], Contribution]
    path: str
    task: int | None = None


class Passes:
    """One pass per row.

    Args:
        graph: The graph.
        plan: A plan for one owner of everything.
        objectives: The rows.
        scale: What the losses are multiplied by before they are differentiated.
        dtype: The type of the results.
    """

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        objectives: Objectives,
        scale: float | Tensor,
        dtype: torch.dtype,
    ) -> None:
        self.graph, self.plan, self.objectives = graph, plan, objectives
        self.scale, self.dtype = scale, dtype
        several = isinstance(objectives.losses, tuple) and objectives.m > 1
        self._task_of = plan.task_of if several else None

    def task_of(self, node: int) -> int | None:
        """The only row that reaches a node; ``None`` if there are others, or it is not known."""
        return None if self._task_of is None else self._task_of[node]

    def run(self, targets: Sequence[Target]) -> Iterator[tuple[Target, Contribution | None]]:
        """The contribution of each target; ``None`` if no row arrives.

        Targets come in groups. Each takes passes of its own, and is over before the next begins, so
        that the gradients of many rows need not be held everywhere at the same time.
        """
        for group in self._groups(targets):
            held = self._one_by_one(group)
            for target in group:
                # no name for it here: it must not outlive its use
                yield target, self._contribution(target, held.pop(0))

    def _contribution(self, target: Target, rows: Tensor | None) -> Contribution | None:
        if rows is None:
            return None
        found = target.contribution(rows)
        return found if target.task is None else OneRow(found, target.task, self.objectives.m)

    def _groups(self, targets: Sequence[Target]) -> Iterator[list[Target]]:
        m = self.objectives.m
        sizes = [(m if target.task is None else 1) * self._size(target) for target in targets]
        limit = 2 * (self._parameters + self.plan.activations)
        if self.objectives.kind != "tasks":
            limit = max(limit, _NUMBERS)
        group: list[Target] = []
        total = 0
        for target, size in zip(targets, sizes, strict=True):
            if group and total + size > limit:
                yield group
                group, total = [], 0
            group.append(target)
            total += size
        if group:
            yield group

    def _size(self, target: Target) -> int:
        if isinstance(target.what, Tensor) or target.row is not None:
            return prod(self.plan.records[self.plan.leaves[target.parameters[0]]].shapes[0])
        return prod(self.plan.records[target.node].shapes[0])

    @property
    def _parameters(self) -> int:
        return sum(prod(self.plan.records[leaf].shapes[0]) for leaf in self.plan.leaves.values())

    def _one_by_one(self, targets: Sequence[Target]) -> list[Tensor | None]:
        held: list[Tensor | None] = [None] * len(targets)
        places = list(dict.fromkeys(target.what for target in targets))
        for k in range(self.objectives.m):
            output, weight = self.objectives.row(k)
            found = gradients_of([output], [weight * self.scale], places)
            by_place = dict(zip(places, found, strict=True))
            for j, target in enumerate(targets):
                block, gradient = held[j], by_place[target.what]
                if gradient is not None:
                    held[j] = self._put(block, k, target, gradient)
                elif block is not None and target.task is None:
                    block[k] = 0
        return held

    def _put(self, block: Tensor | None, k: int, target: Target, gradient: Tensor) -> Tensor:
        row = self._unscaled(gradient)
        if target.row is not None:
            row = target.row(row)
        row = self._cast(row)
        if target.task is not None:
            return row.unsqueeze(0)
        if block is None:
            block = row.new_empty(self.objectives.m, *row.shape)
            block[:k] = 0
        block[k] = row
        return block

    def _cast(self, gradient: Tensor) -> Tensor:
        return gradient.to(self.dtype.to_complex() if gradient.is_complex() else self.dtype)

    def _unscaled(self, gradient: Tensor) -> Tensor:
        dense = gradient.to_dense() if gradient.is_sparse else gradient
        if is_one(self.scale):
            return dense
        return self._cast(dense) / self.scale

"""A plain loop over tasks: one backward pass each, fastest where tensors are small."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_jd.engines._objectives import Objectives, is_one
from lightning_jd.engines.tape.contributions import products
from lightning_jd.engines.tape.graph import gradients_of

#: Numbers that the rows of all tasks may be (1 MB in float32). Not a measurement: a run that is
#: resumed must take the same way as one that was not interrupted, bit for bit.
MAX_LOOP_NUMBERS = 1 << 18


@dataclass(frozen=True)
class Loop:
    """The rows of several tasks.

    Attributes:
        G: The Gramian.
        J: The rows of the reached parameters, side by side.
        reached: These parameters, by position.
        sparse: Those whose gradients autograd makes sparse, as optimizers for these want them.
        beside: The gradients of the sum of the tasks for other parameters.
    """

    G: Tensor
    J: Tensor
    reached: dict[int, Tensor]
    sparse: frozenset[int]
    beside: list[Tensor | None]

    def gradients(self, weights: Tensor) -> dict[int, Tensor]:
        """The gradients of the reached parameters, in their shape and type."""
        sizes = [parameter.numel() for parameter in self.reached.values()]
        parts = torch.mv(self.J.T, weights.to(self.J.dtype)).split(sizes)
        found = {
            k: part.view(parameter.shape).to(parameter.dtype)
            for (k, parameter), part in zip(self.reached.items(), parts, strict=True)
        }
        return {k: g.to_sparse(1) if k in self.sparse else g for k, g in found.items()}


def loop_over_tasks(
    objectives: Objectives,
    parameters: Sequence[Tensor],
    scale: float | Tensor,
    dtype: torch.dtype,
    *,
    retain_graph: bool = True,
    beside: Sequence[Tensor] = (),
) -> Loop:
    """One pass per task."""
    rows: list[tuple[Tensor | None, ...]] = []
    for task in range(objectives.m):
        output, weight = objectives.row(task)
        keep = retain_graph or task < objectives.m - 1
        weights = [weight if is_one(scale) else weight * scale]
        rows.append(gradients_of([output], weights, [*parameters, *beside], retain_graph=keep))
    known = [[g for g in column if g is not None] for column in zip(*rows, strict=True)]
    reached = {k: parameter for k, parameter in enumerate(parameters) if known[k]}
    parts = [_flat(row[k], parameter) for row in rows for k, parameter in reached.items()]
    J = torch.cat(parts) if parts else torch.zeros(0, device=objectives.device)
    J = J.view(objectives.m, -1).to(dtype)
    sums = [sum(column[1:], column[0]) if column else None for column in known[len(parameters) :]]
    if not is_one(scale):
        J = J.div_(scale)
        sums = [None if gradient is None else gradient / scale for gradient in sums]
    sparse = frozenset(k for k in reached if all(g.is_sparse for g in known[k]))
    return Loop(products(J), J, reached, sparse, sums)


def _flat(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    """A gradient as a vector; one that is missing is zero."""
    if gradient is None:
        return parameter.new_zeros(parameter.numel())
    return (gradient.to_dense() if gradient.is_sparse else gradient).reshape(-1)

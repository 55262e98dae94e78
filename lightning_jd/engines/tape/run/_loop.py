"""Tasks one after the other, as anybody would write it: the fastest way where tensors are small."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_jd.engines._objectives import Objectives
from lightning_jd.engines.tape.contributions import products
from lightning_jd.engines.tape.graph import gradients_of

#: Numbers that the rows of all tasks may be (16 MB in float32).
ROWS = 1 << 22


@dataclass(frozen=True)
class Loop:
    """The rows of the parameters that several tasks reach, and the gradients of the others.

    Attributes:
        G: The Gramian.
        J: The rows, side by side.
        shared: The parameters in J.
        own: The gradients of parameters that one task alone reaches, by task and parameter.
        parameters: All parameters.
    """

    G: Tensor
    J: Tensor
    shared: tuple[int, ...]
    own: dict[int, dict[int, Tensor]]
    parameters: Sequence[Tensor]

    @property
    def reached(self) -> set[int]:
        """The parameters that some task reaches."""
        return {*self.shared, *(k for gradients in self.own.values() for k in gradients)}

    def gradients(self, weights: Tensor) -> dict[int, Tensor]:
        """The gradients of the reached parameters, in their shape and type."""
        found: dict[int, Tensor] = {}
        if self.shared:
            sizes = [self.parameters[k].numel() for k in self.shared]
            parts = torch.mv(self.J.T, weights.to(self.J.dtype)).split(sizes)
            for k, part in zip(self.shared, parts, strict=True):
                found[k] = part.view(self.parameters[k].shape).to(self.parameters[k].dtype)
        for task, gradients in self.own.items():
            weight = weights[task]
            for k, gradient in gradients.items():
                found[k] = gradient * weight.to(gradient.dtype)
        return found


def loop_over_tasks(
    objectives: Objectives,
    parameters: Sequence[Tensor],
    scale: float | Tensor,
    dtype: torch.dtype,
    *,
    retain_graph: bool = True,
) -> Loop:
    """One pass per task.

    Args:
        objectives: The tasks.
        parameters: The parameters, real ones.
        scale: What the losses are multiplied by before they are differentiated.
        dtype: The type to compute in.
        retain_graph: Whether the graph is kept.
    """
    m = objectives.m
    rows: list[tuple[Tensor | None, ...]] = []
    for task in range(m):
        output, weight = objectives.row(task)
        keep = retain_graph or task < m - 1
        found = gradients_of([output], [weight * scale], parameters, retain_graph=keep)
        rows.append(tuple([g if g is None or not g.is_sparse else g.to_dense() for g in found]))
    counts = [sum(row[k] is not None for row in rows) for k in range(len(parameters))]
    shared = tuple([k for k, count in enumerate(counts) if count > 1])
    is_scaled = not (isinstance(scale, (int, float)) and scale == 1)
    own: dict[int, dict[int, Tensor]] = {}
    lines = []
    for task, row in enumerate(rows):
        parts = [torch.zeros_like(parameters[k]) if row[k] is None else row[k] for k in shared]
        if parts:
            lines.append(torch.cat([part.reshape(-1) for part in parts if part is not None]))
        alone = {
            k: gradient.div(scale) if is_scaled else gradient
            for k, gradient in enumerate(row)
            if gradient is not None and counts[k] == 1
        }
        if alone:
            own[task] = alone
    if lines:
        J = torch.stack(lines).to(dtype)
        J = J.div_(scale) if is_scaled else J
        G = products(J)
    else:
        J = torch.zeros(m, 0, dtype=dtype, device=objectives.device)
        G = torch.zeros(m, m, dtype=dtype, device=objectives.device)
    for task, gradients in own.items():
        norms = torch.stack(torch._foreach_norm([g.to(dtype) for g in gradients.values()]))
        G[task, task] += norms.square().sum()
    return Loop(G, J, shared, own, parameters)

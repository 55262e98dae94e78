"""Tasks one after the other, as anybody would write it: the fastest way where tensors are small."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_jd.engines._hooks import hooks_silenced
from lightning_jd.engines._objectives import Objectives, Output, is_one
from lightning_jd.engines.tape.contributions import products
from lightning_jd.engines.tape.graph import run_engine

#: Numbers that the rows of all tasks may be (1 MB in float32). Not a measurement: a run that is
#: resumed must take the same way as one that was not interrupted, bit for bit.
MAX_LOOP_NUMBERS = 1 << 18


@dataclass(frozen=True)
class Loop:
    """The rows of the parameters that several tasks reach, and the gradients of the others.

    Attributes:
        G: The Gramian.
        J: The rows, side by side.
        shared: The parameters in J.
        own: The gradients of parameters that one task alone reaches, by task and parameter.
        parameters: All parameters.
        sparse: Those whose gradients autograd makes sparse, as optimizers for these want them.
        beside: The gradients of the sum of the tasks for other parameters.
    """

    G: Tensor
    J: Tensor
    shared: tuple[int, ...]
    own: dict[int, dict[int, Tensor]]
    parameters: Sequence[Tensor]
    sparse: frozenset[int]
    beside: list[Tensor | None]

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
        each = weights.unbind()
        for task, gradients in self.own.items():
            weighted = torch._foreach_mul(list(gradients.values()), each[task])
            for k, gradient in zip(gradients, weighted, strict=True):
                found[k] = gradient.to(self.parameters[k].dtype)
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
    is_scaled = not is_one(scale)
    targets, n = [*parameters, *beside], len(parameters)
    rows = _rows(objectives, targets, scale if is_scaled else None, retain_graph=retain_graph)
    sums = [_sum(column) for column in zip(*[row[n:] for row in rows], strict=True)]
    if is_scaled:
        sums = [None if gradient is None else gradient / scale for gradient in sums]
    rows, sparse = _dense([row[:n] for row in rows])
    counts = [sum(row[k] is not None for row in rows) for k in range(n)]
    shared = tuple([k for k, count in enumerate(counts) if count > 1])
    own: dict[int, dict[int, Tensor]] = {}
    for task, row in enumerate(rows if len(shared) < n else ()):
        alone = {
            # half precision would lose what the scale was for
            k: gradient.to(dtype).div(scale) if is_scaled else gradient
            for k, gradient in enumerate(row)
            if gradient is not None and counts[k] == 1
        }
        if alone:
            own[task] = alone
    if shared:
        parts = [
            torch.zeros_like(parameters[k]) if (found := row[k]) is None else found
            for row in rows
            for k in shared
        ]
        J = torch.cat([part.reshape(-1) for part in parts]).view(objectives.m, -1).to(dtype)
        J = J.div_(scale) if is_scaled else J
        G = products(J)
    else:
        J = torch.zeros(objectives.m, 0, dtype=dtype, device=objectives.device)
        G = J.new_zeros(objectives.m, objectives.m)
    if own:
        single = [(task, g.to(dtype)) for task, several in own.items() for g in several.values()]
        squares = torch.stack(torch._foreach_norm([g for _, g in single])).square_()
        tasks = torch.tensor([task for task, _ in single]).to(G.device, non_blocking=True)
        G.diagonal().index_add_(0, tasks, squares)
    return Loop(G, J, shared, own, parameters, sparse, sums)


def _dense(
    rows: list[tuple[Tensor | None, ...]],
) -> tuple[list[tuple[Tensor | None, ...]], frozenset[int]]:
    """The same as dense tensors, and the parameters whose gradients were all sparse."""
    if not any(g is not None and g.is_sparse for row in rows for g in row):
        return rows, frozenset()
    known = [[g for g in column if g is not None] for column in zip(*rows, strict=True)]
    sparse = frozenset(k for k, found in enumerate(known) if {g.is_sparse for g in found} == {True})
    dense = [tuple([g.to_dense() if g is not None and g.is_sparse else g for g in r]) for r in rows]
    return dense, sparse


def _sum(gradients: Sequence[Tensor | None]) -> Tensor | None:
    """The sum of those that there are."""
    known = [gradient for gradient in gradients if gradient is not None]
    return sum(known[1:], known[0]) if known else None


def _rows(
    objectives: Objectives,
    parameters: Sequence[Tensor],
    scale: float | Tensor | None,
    *,
    retain_graph: bool,
) -> list[tuple[Tensor | None, ...]]:
    """The gradients of one task after the other."""
    assert isinstance(objectives.losses, tuple)
    rows: list[tuple[Tensor | None, ...]] = []
    with hooks_silenced(parameters):
        for task, loss in enumerate(objectives.losses):
            output: Output
            weight: Tensor | None
            if isinstance(loss, Tensor) and scale is None:
                output, weight = loss, None
            else:
                output, weight = objectives.row(task)
                weight = weight if scale is None else weight * scale
            keep = retain_graph or task < objectives.m - 1
            found = run_engine([output], [weight], parameters, retain_graph=keep)
            rows.append(found)
    return rows

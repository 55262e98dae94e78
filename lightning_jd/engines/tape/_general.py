"""Rows that cannot be told apart in one pass, such as tasks: one pass each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node
from typing_extensions import override

from lightning_jd.engines.tape._contribution import Contribution, Rows
from lightning_jd.engines.tape._differentiate import gradients_of
from lightning_jd.engines.tape._graph import Graph
from lightning_jd.engines.tape._ledger import Ledger
from lightning_jd.engines.tape._placement import Placement
from lightning_jd.engines.tape._plan import Plan, Use

#: An output and the weights of its entries, whose gradient is one row.
Row = tuple[Tensor, Tensor]


class SharedActivations(Contribution):
    r"""Gradients :math:`J_k = D_k^\top A` of a matrix weight: all objectives share the activations.

    .. math:: G_{kl} = \langle D_k, (A A^\top + c) D_l \rangle

    with c = 1 if there is a bias. No gradient is formed: cheaper where there are fewer activations
    than features.

    Args:
        activations: A, shape (n, i).
        cotangents: D, shape (m, n, o).
        use: The weight, and perhaps its bias.
        cotangents_first: The operation consumes the weight as (o, i) rather than (i, o).
    """

    def __init__(
        self, activations: Tensor, cotangents: Tensor, use: Use, *, cotangents_first: bool
    ) -> None:
        self.placements = use.placements
        self.A, self.D = activations, cotangents
        self._is_oi = cotangents_first != use.placements[0].transposed

    @override
    def gramian(self) -> Tensor:
        K = self.A @ self.A.T
        if len(self.placements) > 1:
            K += 1
        return self.D.flatten(1) @ torch.matmul(K, self.D).flatten(1).T

    @override
    def rows(self) -> Tensor:
        raise NotImplementedError("a matrix weight with one use is never asked for its rows")

    @override
    def gradients(self, weights: Tensor) -> list[Tensor]:
        D = (weights.to(self.D.dtype) @ self.D.flatten(1)).view(self.D.shape[1:])
        gradient = (D.T @ self.A if self._is_oi else self.A.T @ D).reshape(-1)
        placement, *bias = self.placements
        if placement.where is not None:
            gradient = placement.placed(gradient.unsqueeze(0))[0]
        return [gradient, D.sum(dim=0)] if bias else [gradient]


@dataclass(frozen=True)
class _Trick:
    use: Use
    is_transposed: bool  # the batch is the second axis of the output: ``W x``


def add_rows(
    ledger: Ledger,
    graph: Graph,
    plan: Plan,
    rows: Sequence[Row],
    parameters: Mapping[int, Tensor],
    scale: float | Tensor,
) -> set[int]:
    """Add the Gramian of some parameters, with one pass per row.

    Args:
        ledger: Where to.
        graph: The graph.
        plan: A plan for one owner of everything.
        rows: What to differentiate.
        parameters: The parameters, by position.
        scale: What the losses are multiplied by before they are differentiated.

    Returns:
        The parameters whose gradients were never formed.
    """
    tricks = _tricks(graph, plan, parameters, len(rows))
    covered = {placement.parameter for trick in tricks for placement in trick.use.placements}
    direct = {position: p for position, p in parameters.items() if position not in covered}
    targets: list[GradientEdge | Tensor] = [
        GradientEdge(graph.nodes[trick.use.node], 0) for trick in tricks
    ]
    targets += list(direct.values())
    found = _all_rows(rows, targets, scale, ledger.G.dtype)
    for trick, D in zip(tricks, found, strict=False):
        if D is not None:
            ledger.add(_shared(graph, trick, D, ledger.G.dtype))
    for (position, parameter), J in zip(direct.items(), found[len(tricks) :], strict=True):
        if J is not None:
            ledger.add(Rows(J, Placement(position, parameter.numel(), tuple(parameter.shape))))
    return covered


def _tricks(
    graph: Graph, plan: Plan, parameters: Collection[int], m: int
) -> list[_Trick]:
    """The matrix weights whose Gramian is cheaper without gradients."""
    found = []
    for unit in plan.units:
        if len(unit.uses) > 1 or not all(position in parameters for position in unit.parameters):
            continue
        use = plan.uses[unit.uses[0]]
        name, shape = plan.records[use.node].name, plan.records[use.node].shapes[0]
        is_weight = (name, use.slots[0]) in {("AddmmBackward0", 2), ("MmBackward0", 1)}
        if not is_weight or not use.placements[0].is_whole or not _is_plain(graph.nodes[use.node], use):
            continue
        if sum(unit.parameters[0] in other.parameters for other in plan.units) > 1:
            continue
        (n, o), i = shape, use.placements[0].shape[0]
        without = n * n * i + m * n * n * o + m * m * n * o + n * i * o
        if without < m * n * i * o + m * m * i * o:
            found.append(_Trick(use, False))
    return found


def _is_plain(node: Node, use: Use) -> bool:
    """``b + x W`` without factors, with a vector b."""
    if node.name() == "MmBackward0":
        return True
    if node._saved_alpha != 1:  # type: ignore[attr-defined]
        return False
    has_bias = len(use.slots) > 1
    return not has_bias or (node._saved_beta == 1 and len(use.placements[1].shape) == 1)  # type: ignore[attr-defined]


def _shared(graph: Graph, trick: _Trick, D: Tensor, dtype: torch.dtype) -> Contribution:
    node = graph.nodes[trick.use.node]
    is_addmm = node.name() == "AddmmBackward0"
    A = node._saved_mat1 if is_addmm else node._saved_self  # type: ignore[attr-defined]
    return SharedActivations(A.to(dtype), D, trick.use, cotangents_first=False)


def _all_rows(
    rows: Sequence[Row],
    targets: Sequence[GradientEdge | Tensor],
    scale: float | Tensor,
    dtype: torch.dtype,
) -> list[Tensor | None]:
    """The gradients of all rows at all targets, (m, ...) each; ``None`` where no row arrives."""
    found: list[Tensor | None] = [None] * len(targets)
    for k, (output, weight) in enumerate(rows):
        gradients = gradients_of([output], [weight * scale], targets)
        for j, gradient in enumerate(gradients):
            if gradient is None:
                continue
            dense = gradient.to_dense() if gradient.is_sparse else gradient
            held = found[j]
            if held is None:
                held = found[j] = dense.new_zeros(len(rows), *dense.shape, dtype=dtype)
            if isinstance(scale, (int, float)) and scale == 1:
                held[k].copy_(dense)
            else:
                torch.div(dense.to(dtype), scale, out=held[k])
    return found

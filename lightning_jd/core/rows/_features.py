"""The Gramian of the gradients at the features: every loss is differentiated down to there only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from lightning_jd.core.rows._feature_edges import Cut, Entry, Place, cut_of
from lightning_jd.engines import NamedParameters, Objectives
from lightning_jd.errors import GraphError

#: Operations that multiply their input with a matrix, and which of their inputs that is.
_LINEAR = {"AddmmBackward0": 1, "MmBackward0": 0}
#: Entries of rows that are multiplied at a time on a CPU, so that they stay in its cache.
_BLOCK = 1 << 19


class Product(NamedTuple):
    """The gradient at the input of a linear layer, as its factors (b, o) and (o, f)."""

    output: Tensor
    weight: Tensor

    def dense(self) -> Tensor:
        """The gradient itself, shape (b, f)."""
        return self.output @ self.weight


#: For each place, the gradient of each task; ``None`` where it does not come.
Gradients = list[list[Tensor | Product | None]]


def features_gramian(
    objectives: Objectives,
    scale: float | Tensor = 1.0,
    features: str | Tensor | None = None,
    named: NamedParameters = (),  # type: ignore[assignment]  # nobody changes it
) -> Tensor:
    """The Gramian of the gradients of the losses at the features, shape (m, m).

    Of a matrix of losses (instance and task), instances have no features in common: all inner
    products between two of them are zero. The graph is kept; ``features`` are those of
    :func:`~lightning_jd.core.rows._feature_edges.cut_of`.

    Raises:
        GraphError: If there are no features, or if instances have them in common.

    Example:
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> z = 2 * x
        >>> features_gramian(Objectives.of([z[0], z.sum()]))  # of (1, 0) and (1, 1)
        tensor([[1., 1.],
                [1., 2.]])
    """
    cut = cut_of(objectives, features, named)
    dtype = torch.float64 if objectives.dtype == torch.float64 else torch.float32
    G = torch.zeros(objectives.m, objectives.m, dtype=dtype, device=objectives.device)
    ones = torch.ones(objectives.m, dtype=objectives.dtype, device=objectives.device)
    found = _gradients(objectives, cut, ones * scale)
    if all(part is None for column in found for part in column):
        raise GraphError(
            "Weights from features must be taken where losses come by, got features that no loss "
            "depends on."
        )
    if objectives.kind == "instances_tasks":
        factors = 2.0 ** (torch.arange(objectives.m, device=ones.device) // len(found[0]) % 5)
        again = _gradients(objectives, cut, factors.to(ones) * scale)
        for column, other in zip(found, again, strict=True):
            _add_instances(G, [*map(_dense, column)], [*map(_dense, other)])
    else:
        for column in found:
            _add_products(G, column)
    return G / scale**2


def _gradients(objectives: Objectives, cut: Cut, weights: Tensor) -> Gradients:
    """The gradients of the weighted losses of each task at each place."""
    if cut.entries is not None:
        return _in_one_pass(objectives, cut.places, cut.entries, weights)
    edges = [GradientEdge(*place) for place in cut.places]
    k = objectives.m
    if isinstance(objectives.losses, Tensor) and objectives.losses.ndim == 2:
        k = objectives.losses.shape[1]
    passes = []
    for task in range(k):
        own = torch.zeros_like(weights)
        own[task::k] = weights[task::k]
        passes.append(_differentiated(objectives, objectives.cotangents(own), edges))
    return [list(column) for column in zip(*passes, strict=True)]


def _in_one_pass(
    objectives: Objectives, places: list[Place], entries: list[list[Entry]], weights: Tensor
) -> Gradients:
    """All tasks at once, because each comes by operations of its own.

    Where that is a linear layer, the pass ends at its output.
    """
    every = [(task, entry) for task, own in enumerate(entries) for entry in own]
    linear = [each for each in every if _is_linear(*each[1])]
    others = [each for each in every if not _is_linear(*each[1])]
    edges = [GradientEdge(node, 0) for _, (node, _, _) in linear]
    edges += [GradientEdge(*place) for place in dict.fromkeys(e[2] for _, e in others)]
    found: dict[tuple[int, Place], Tensor | Product] = {}
    with _captured(others, found):
        ends = _differentiated(objectives, objectives.cotangents(weights), edges)
    for (task, (node, _, place)), end in zip(linear, ends[: len(linear)], strict=True):
        if end is not None:
            own = Product(end, node._saved_mat2.mT)
            known = found.get((task, place))
            found[task, place] = own if known is None else _dense(known) + own.dense()
    return [[found.get((task, place)) for task in range(len(entries))] for place in places]


def _is_linear(node: Any, position: int, _: Place) -> bool:
    is_input = _LINEAR.get(type(node).__name__) == position
    return is_input and getattr(node, "_saved_alpha", 1) == 1


def _differentiated(
    objectives: Objectives, cotangents: tuple[Tensor, ...], edges: list[GradientEdge]
) -> tuple[Tensor | None, ...]:
    return torch.autograd.grad(
        objectives.outputs,  # type: ignore[arg-type]  # tensors and edges may be mixed
        edges,
        cotangents,
        retain_graph=True,
        allow_unused=True,
    )


@contextmanager
def _captured(
    entries: list[tuple[int, Entry]], found: dict[tuple[int, Place], Tensor | Product]
) -> Iterator[None]:
    """During a backward pass, store the gradient of each task at each place and remove it there."""
    wanted: dict[Any, list[tuple[int, tuple[int, Place]]]] = {}
    for task, (node, position, place) in entries:
        wanted.setdefault(node, []).append((position, (task, place)))

    def taken(some: list[tuple[int, tuple[int, Place]]], inputs: tuple[Any, ...]) -> Any:
        rest = list(inputs)
        for position, key in some:
            if (part := rest[position]) is not None:
                found[key] = _dense(found[key]) + part if key in found else part
                rest[position] = None  # nobody has to add them up
        return tuple(rest)

    handles = [
        node.register_hook(lambda inputs, _, some=some: taken(some, inputs))
        for node, some in wanted.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _dense(part: Tensor | Product | None) -> Any:
    return part.dense() if isinstance(part, Product) else part


def _add_products(G: Tensor, rows: list[Tensor | Product | None]) -> None:
    """Add the inner products of some rows, of which one that is ``None`` is zero."""
    present = [i for i, row in enumerate(rows) if row is not None]
    known = [row for row in rows if row is not None]
    if not known:
        return
    factors = [row for row in known if isinstance(row, Product)]
    if len(factors) == len(known) and _is_small(factors):
        products = _products_of_factors(factors, G.dtype)
    else:
        products = _products_of_rows([_dense(row).reshape(-1).to(G.dtype) for row in known])
    if len(known) == len(G):
        G += products.to(G.device)
    else:
        index = torch.tensor(present, device=G.device)
        G[index.unsqueeze(1), index] += products.to(G.device)


def _products_of_rows(rows: list[Tensor]) -> Tensor:
    size = max(1, _BLOCK // len(rows)) if rows[0].device.type == "cpu" else max(1, len(rows[0]))
    products = rows[0].new_zeros(len(rows), len(rows))
    for pieces in zip(*(row.split(size) for row in rows), strict=True):
        J = torch.stack(pieces)
        products.addmm_(J, J.T)
    return products


def _is_small(factors: list[Product]) -> bool:
    """Whether it takes less to multiply factors than to multiply what they stand for."""
    b, f = len(factors[0].output), factors[0].weight.shape[1]
    outputs = sum(factor.output.shape[1] for factor in factors)
    return outputs**2 * (b + f) <= len(factors) ** 2 * b * f


def _products_of_factors(factors: list[Product], dtype: torch.dtype) -> Tensor:
    r"""Those of :math:`A_k W_k`, that is :math:`\langle A_k^\top A_l, W_k W_l^\top \rangle`."""
    A = torch.cat([factor.output.to(dtype) for factor in factors], dim=1)
    W = torch.cat([factor.weight.to(dtype) for factor in factors])
    entries = (A.T @ A) * (W @ W.T)  # one per pair of outputs
    sizes = [factor.output.shape[1] for factor in factors]
    if len(set(sizes)) == 1:
        return entries.view(len(sizes), sizes[0], len(sizes), sizes[0]).sum(dim=(1, 3))
    rows = torch.stack([block.sum(dim=0) for block in entries.split(sizes)])
    return torch.stack([block.sum(dim=1) for block in rows.split(sizes, dim=1)], dim=1)


def _add_instances(G: Tensor, column: list[Tensor | None], other: list[Tensor | None]) -> None:
    """Add the inner products of the tasks of each instance, from their gradients at one place.

    ``other`` has loss i times 2^(i mod 5): where instances do not mix, slices have that factor.
    """
    some = next((part for part in column if part is not None), None)
    if some is None:
        return
    k = len(column)
    b = len(G) // k
    factors = 2.0 ** (torch.arange(b, device=some.device) % 5).to(some)
    if some.ndim == 0 or len(some) != b:
        raise GraphError(
            f"Features of instances and tasks must have one slice per instance ({b}) in dimension "
            f"0, got shape {tuple(some.shape)}. Average the losses over instances (rows='tasks')."
        )

    def stacked(gradients: list[Tensor | None]) -> Tensor:  # shape (b, k, f)
        known = [torch.zeros_like(some) if part is None else part for part in gradients]
        return torch.stack([part.reshape(b, -1).to(G.dtype) for part in known], dim=1)

    D, E = stacked(column), stacked(other)
    error = (E - factors.to(G.dtype)[:, None, None] * D).abs().amax()
    if bool(error > 1e-2 * E.abs().amax()):
        raise GraphError(
            "Features of instances and tasks must belong to one instance each, got heads that mix "
            "the instances of a batch (as batch normalisation does). Average the losses over "
            "instances (rows='tasks')."
        )
    index = torch.arange(b, device=G.device)
    G.view(b, k, b, k)[index, :, index, :] += (D @ D.mT).to(G.device)

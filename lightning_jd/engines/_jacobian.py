"""The Jacobian of losses: by the tape, or row by row, which is the oracle of everything else."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_jd.engines._graph import check_visible, leaves_reached, nodes_below
from lightning_jd.engines._hooks import hooks_silenced
from lightning_jd.engines._objectives import Losses, Objectives, Output, is_one
from lightning_jd.engines._parameters import (
    NamedParameters,
    Parameters,
    column_count,
    named_parameters_of,
    to_columns,
)
from lightning_jd.engines.tape import Slow, Tape, slow_parameters
from lightning_jd.errors import ArgumentError


def jacobian(
    losses: Losses | Objectives,
    params: Parameters,
    *,
    chunk: int | None = None,
    scale: float | Tensor = 1.0,
) -> Tensor:
    """Jacobian of the losses: one row per objective, all parameters side by side in its columns.

    The graph is kept, so that the losses can still be used. Instances cost about one backward pass
    for all of them, tasks one each. The (m, n) matrix takes memory; :func:`gramian` needs none.

    Args:
        losses: A 1-D or 2-D tensor, a list of scalars or a dict of named scalars.
        params: A module, tensors or (name, tensor) pairs; those that require no gradient are left
            out. n is the number of their entries.
        chunk: By default instances are differentiated together, by the tape, and tasks one after
            the other. A number makes it row by row, so many in one vectorised call: slow and
            obvious.
        scale: A factor on the losses while they are differentiated, taken out of the result in
            full precision, so that half-precision gradients do not underflow.

    Returns:
        The matrix J, shape (m, n), float64 if a parameter is, else float32.

    Raises:
        ArgumentError: If ``chunk`` is less than 1.
        GraphError: If reentrant checkpointing hides a part of the graph.

    Example:
        >>> import torch
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> jacobian([x.sum(), x.prod()], [x])
        tensor([[1., 1.],
                [2., 1.]])
    """
    if chunk is not None and chunk < 1:
        raise ArgumentError(f"`chunk` must be at least 1, got {chunk}.")
    objectives, named = Objectives.of(losses), named_parameters_of(params)
    return jacobian_with_reasons(objectives, named, chunk=chunk, scale=scale)[0]


def jacobian_with_reasons(
    objectives: Objectives,
    named: NamedParameters,
    *,
    chunk: int | None = None,
    scale: float | Tensor = 1.0,
) -> tuple[Tensor, dict[str, Slow]]:
    """The Jacobian, and the parameters whose rows took more than one pass; arguments as above."""
    if chunk is None and objectives.kind in ("instances", "instances_tasks"):
        reached = leaves_reached(objectives)
        if any(id(tensor) in reached for _, tensor in named):
            tape = Tape(objectives, named, scale=scale)
            return tape.jacobian(), slow_parameters(tape)
    return row_by_row(objectives, named, chunk=chunk or 1, scale=scale), {}


def row_by_row(
    objectives: Objectives, named: NamedParameters, *, chunk: int = 1, scale: float | Tensor = 1.0
) -> Tensor:
    """The Jacobian, shape (m, n), by one backward pass per row; the graph is kept.

    Args:
        objectives: The losses.
        named: The parameters.
        chunk: Rows that are computed in one vectorised call, which is seldom faster. Graphs that
            cannot be vectorised (``torch.compile``) run row after row.
        scale: A factor on the losses while they are differentiated, taken out of the result.

    Raises:
        GraphError: If reentrant checkpointing hides a part of the graph.
    """
    check_visible(nodes_below(objectives))
    tensors = [tensor for _, tensor in named]
    double = any(tensor.dtype.to_real() == torch.float64 for tensor in tensors)
    dtype = torch.float64 if double else torch.float32
    columns = [column_count(tensor) for tensor in tensors]
    J = torch.zeros(objectives.m, sum(columns), dtype=dtype, device=objectives.device)
    for begin in range(0, objectives.m, chunk):
        rows = J[begin : begin + chunk]
        try:
            found = _gradients(objectives, tensors, begin, len(rows), scale)
        except RuntimeError:
            if len(rows) == 1:
                raise
            return row_by_row(objectives, named, scale=scale)  # which raises what is a true error
        for place, gradient in zip(rows.split(columns, dim=1), found, strict=True):
            if gradient is not None:  # a gradient that is missing is zero
                place.copy_(to_columns(gradient).view(place.shape))
    return J if is_one(scale) else J.div_(scale)


def _gradients(
    objectives: Objectives, tensors: list[Tensor], begin: int, count: int, scale: float | Tensor
) -> Sequence[Tensor | None]:
    """The gradients of some losses; of several, each has one more dimension in front."""
    outputs: Sequence[Output] = objectives.outputs
    if count == 1:
        output, weight = objectives.row(begin)
        outputs, weights = [output], [weight * scale]
    else:
        identity = torch.eye(objectives.m, dtype=objectives.dtype, device=objectives.device)
        block = identity[begin : begin + count] * scale
        per_row = zip(*map(objectives.cotangents, block), strict=True)
        weights = [torch.stack(column) for column in per_row]
    with hooks_silenced(tensors):
        return torch.autograd.grad(
            outputs,  # type: ignore[arg-type]  # tensors and edges may be mixed
            tensors,
            weights,
            retain_graph=True,
            allow_unused=True,
            is_grads_batched=count > 1,
        )

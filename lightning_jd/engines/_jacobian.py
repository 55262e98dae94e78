"""The Jacobian of losses, by the way that suits them."""

from __future__ import annotations

from torch import Tensor

from lightning_jd.engines._graph import leaves_reached
from lightning_jd.engines._objectives import Losses, Objectives
from lightning_jd.engines._parameters import NamedParameters, Parameters, named_parameters_of
from lightning_jd.engines._rows import row_by_row
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
        chunk: By default instances are differentiated together, by the tape. A number makes it row
            by row, so many in one vectorised call: slow and obvious.
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
    return row_by_row(objectives, named, chunk=chunk, scale=scale), {}

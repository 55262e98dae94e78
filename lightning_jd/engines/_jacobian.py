"""The Jacobian of losses: by the tape, or row by row, which is the oracle of everything else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import Node

from lightning_jd.engines._columns import column_count, to_columns
from lightning_jd.engines._graph import check_visible, leaves_reached, nodes_below
from lightning_jd.engines._hooks import hooks_silenced
from lightning_jd.engines._objectives import Losses, Objectives, Output, is_one
from lightning_jd.engines._parameters import NamedParameters, Parameters, named_parameters_of
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


#: Numbers that the rows of one vectorised call may hold (256 MB in float32).
_CHUNK_NUMBERS = 2**26


def row_by_row(
    objectives: Objectives, named: NamedParameters, *, chunk: int | None, scale: float | Tensor
) -> Tensor:
    """The Jacobian, shape (m, n), by one backward pass per row; the graph is kept.

    Args:
        objectives: The losses.
        named: The parameters.
        chunk: Rows that are computed in one vectorised call; ``None`` chooses. Graphs that cannot
            be vectorised (``torch.compile``) run row after row.
        scale: A factor on the losses while they are differentiated, taken out of the result.

    Raises:
        GraphError: If reentrant checkpointing hides a part of the graph.
    """
    nodes = nodes_below(objectives)
    check_visible(nodes)
    chunk = min(chunk or _chunk_for(objectives, named, nodes), objectives.m)
    try:
        J = _fill(objectives, named, _blocks(objectives, named, chunk, scale), chunk)
    except RuntimeError:
        if chunk == 1:
            raise
        # Some operations cannot be vectorised; what is a true error is raised again here.
        J = _fill(objectives, named, _blocks(objectives, named, 1, scale), 1)
    return J if is_one(scale) else J.div_(scale)


def _chunk_for(objectives: Objectives, named: NamedParameters, nodes: Iterable[Node]) -> int:
    # On a CPU, vectorised convolutions are slower than a loop; most other operations are faster.
    convolves = any(node.name() == "ConvolutionBackward0" for node in nodes)
    if objectives.device.type == "cpu" and convolves:
        return 1
    return max(1, _CHUNK_NUMBERS // sum(tensor.numel() for _, tensor in named))


def _blocks(
    objectives: Objectives, named: NamedParameters, size: int, scale: float | Tensor
) -> Iterator[list[Tensor | None]]:
    """The gradients of up to ``size`` losses at a time, each with one more dimension in front.

    With size 1, each is differentiated alone, without that dimension.
    """
    tensors = [tensor for _, tensor in named]
    for begin in range(0, objectives.m, size):
        outputs: Sequence[Output] = objectives.outputs
        if size == 1:
            output, weight = objectives.row(begin)
            outputs, weights = [output], [weight * scale]
        else:
            identity = torch.eye(objectives.m, dtype=objectives.dtype, device=objectives.device)
            block = identity[begin : begin + size] * scale
            per_row = zip(*map(objectives.cotangents, block), strict=True)
            weights = [torch.stack(column) for column in per_row]
        with hooks_silenced(tensors):
            gradients = torch.autograd.grad(
                outputs,  # type: ignore[arg-type]  # tensors and edges may be mixed
                tensors,
                weights,
                retain_graph=True,
                allow_unused=True,
                is_grads_batched=size > 1,
            )
        yield list(gradients)


def _fill(
    objectives: Objectives,
    named: NamedParameters,
    blocks: Iterator[list[Tensor | None]],
    height: int,
) -> Tensor:
    """Write blocks of ``height`` rows (the last may have fewer) into one matrix."""
    double = any(tensor.dtype.to_real() == torch.float64 for _, tensor in named)
    dtype = torch.float64 if double else torch.float32
    columns = [column_count(tensor) for _, tensor in named]
    J = torch.zeros(  # a gradient that is missing is zero
        objectives.m, sum(columns), dtype=dtype, device=objectives.device
    )
    for target, block in zip(J.split(height), blocks, strict=True):
        for place, g in zip(target.split(columns, dim=1), block, strict=True):
            if g is not None:
                place.copy_(to_columns(g).view(place.shape))
    return J

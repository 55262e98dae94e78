"""The Jacobian, row by row: slow and obvious, the oracle of everything else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import Node

from lightning_jd.engines._columns import column_count, to_columns
from lightning_jd.engines._graph import check_visible, nodes_below
from lightning_jd.engines._hooks import hooks_silenced
from lightning_jd.engines._objectives import Objectives, Output, is_one
from lightning_jd.engines._parameters import NamedParameters

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

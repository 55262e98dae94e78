"""The Jacobian, row by row: slow and obvious, the oracle of everything else."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.autograd.graph import Node

from lightning_jd.engines._columns import column_count, to_columns
from lightning_jd.engines._hooks import hooks_silenced
from lightning_jd.engines._objectives import Objectives, is_one
from lightning_jd.engines._parameters import NamedParameters
from lightning_jd.engines._reach import check_visible, nodes_below

#: Numbers that the rows of one vectorised call may hold (256 MB in float32).
_CHUNK_NUMBERS = 2**26


def rows(
    objectives: Objectives, named: NamedParameters, *, scale: float | Tensor = 1.0
) -> Iterator[list[Tensor | None]]:
    """Differentiate one objective after the other; the graph is kept.

    Args:
        objectives: The losses.
        named: The parameters.
        scale: A factor on the losses.

    Yields:
        The gradients of one loss, one per parameter, sparse or complex where autograd makes them
        so; ``None`` where it does not reach it.
    """
    tensors = [tensor for _, tensor in named]
    for i in range(objectives.m):
        output, cotangent = objectives.row(i)
        with hooks_silenced(tensors):
            gradients = torch.autograd.grad(
                output, tensors, cotangent * scale, retain_graph=True, allow_unused=True
            )
        yield list(gradients)


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
    if chunk > 1:
        try:
            blocks = _blocks(objectives, named, chunk, scale)
            return _unscaled(_fill(objectives, named, blocks, chunk), scale)
        except RuntimeError:
            # Some operations cannot be vectorised; what is a true error is raised again below.
            pass
    one_by_one = rows(objectives, named, scale=scale)
    return _unscaled(_fill(objectives, named, one_by_one, 1), scale)


def _unscaled(J: Tensor, scale: float | Tensor) -> Tensor:
    return J if is_one(scale) else J.div_(scale)


def _chunk_for(objectives: Objectives, named: NamedParameters, nodes: list[Node]) -> int:
    # On a CPU, vectorised convolutions are slower than a loop; most other operations are faster.
    convolves = any(node.name() == "ConvolutionBackward0" for node in nodes)
    if objectives.device.type == "cpu" and convolves:
        return 1
    return max(1, _CHUNK_NUMBERS // sum(tensor.numel() for _, tensor in named))


def _blocks(
    objectives: Objectives, named: NamedParameters, size: int, scale: float | Tensor
) -> Iterator[list[Tensor | None]]:
    """The gradients of up to ``size`` losses at a time, each with one more dimension in front."""
    tensors = [tensor for _, tensor in named]
    identity = torch.eye(objectives.m, dtype=objectives.dtype, device=objectives.device)
    for block in (identity * scale).split(size):
        per_row = [objectives.cotangents(row) for row in block]
        with hooks_silenced(tensors):
            gradients = torch.autograd.grad(
                objectives.outputs,  # type: ignore[arg-type]  # tensors and edges may be mixed
                tensors,
                [torch.stack(column) for column in zip(*per_row, strict=True)],
                retain_graph=True,
                allow_unused=True,
                is_grads_batched=True,
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
    if objectives.m <= height:  # all in one block
        (block,) = blocks
        shapes = [(objectives.m, size) for size in columns]
        missing = torch.zeros((), dtype=dtype, device=objectives.device)
        parts = [
            missing.expand(shape) if g is None else to_columns(g).view(shape).to(missing)
            for g, shape in zip(block, shapes, strict=True)
        ]
        return torch.cat(parts, dim=1)
    J = torch.zeros(  # a gradient that is missing is zero
        objectives.m, sum(columns), dtype=dtype, device=objectives.device
    )
    for target, block in zip(J.split(height), blocks, strict=True):
        for place, g in zip(target.split(columns, dim=1), block, strict=True):
            if g is not None:
                place.copy_(to_columns(g).view(place.shape))
    return J

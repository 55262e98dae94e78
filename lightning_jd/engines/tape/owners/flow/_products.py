"""Matrix products and attention."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_jd.engines.tape.graph import reader
from lightning_jd.engines.tape.owners.flow._elementwise import broadcast
from lightning_jd.engines.tape.owners.flow._registry import (
    REDUCED,
    Crossing,
    Flowed,
    UnprovenError,
    register_flow,
    with_shared,
)


@register_flow("MmBackward0")
def mm(at: Crossing) -> Sequence[Flowed]:
    """Rows of the product come from rows of the left factor, columns from columns of the right."""
    return [at.only, REDUCED] if at.axis == 0 else [REDUCED, at.only]


@register_flow("AddmmBackward0", facts=reader("beta"))
def addmm(at: Crossing) -> Sequence[Flowed]:
    """A product and something that is broadcast to it."""
    return [broadcast(at.only, at.axis, at.shapes[0], at.inputs[0]), *mm(at)]


@register_flow("BmmBackward0")
def bmm(at: Crossing) -> Sequence[Flowed]:
    """A product per slice of the first axis."""
    by_axis: list[list[Flowed]] = [[at.only, at.only], [at.only, REDUCED], [REDUCED, at.only]]
    return by_axis[at.axis]


@register_flow("GroupedMmBackward0")
def grouped_mm(at: Crossing) -> Sequence[Flowed]:
    """Runs of rows, each times a matrix of its own."""
    if at.axis != 0 or at.rank != 2 or any(shape and len(shape) == 2 for shape in at.inputs[1:]):
        raise UnprovenError
    return [at.only, REDUCED]


@register_flow("BaddbmmBackward0")
def baddbmm(at: Crossing) -> Sequence[Flowed]:
    """A batched product and something that is broadcast to it."""
    return [broadcast(at.only, at.axis, at.shapes[0], at.inputs[0]), *bmm(at)]


@register_flow("MvBackward0")
def mv(at: Crossing) -> Sequence[Flowed]:
    """Entries come from rows of the matrix."""
    return [at.only, REDUCED]


@register_flow("AddmvBackward0")
def addmv(at: Crossing) -> Sequence[Flowed]:
    """A matrix-vector product and something that is broadcast to it."""
    return [broadcast(at.only, at.axis, at.shapes[0], at.inputs[0]), *mv(at)]


@register_flow(
    *["LinalgCholeskyExBackward0", "LinalgInvExBackward0", "LinalgSolveTriangularBackward0"],
    *["LinalgSolveExBackward0", "CholeskySolveBackward0", "LinalgMatrixExpBackward0"],
)
def matrices(at: Crossing) -> Sequence[Flowed]:
    """A matrix, or several, per position along the leading axes."""
    if at.axis >= at.rank - 2:
        raise UnprovenError
    for shape in at.inputs:
        if shape is not None and shape[:-2] != at.shapes[0][:-2]:
            raise UnprovenError
    return at.everywhere(at.only)


@register_flow("LinearBackward0")
def linear(at: Crossing) -> Sequence[Flowed]:
    """The last axis is new, all others are those of the input."""
    if at.axis == at.rank - 1:
        raise UnprovenError
    return with_shared(at, at.only)


@register_flow("TrilinearBackward0")
def bilinear(at: Crossing) -> Sequence[Flowed]:
    """The product inside of ``nn.Bilinear``: rows of both inputs, and a weight."""
    if at.axis != 0 or at.rank != 2 or len(at.inputs) != 3:
        raise UnprovenError
    return [at.only, REDUCED, at.only]


@register_flow(
    "ScaledDotProductFlashAttentionForCpuBackward0",
    "ScaledDotProductFlashAttentionBackward0",
    "ScaledDotProductEfficientAttentionBackward0",
    "ScaledDotProductCudnnAttentionBackward0",
    "ScaledDotProductFusedAttentionOverrideableBackward0",
)
def attention(at: Crossing) -> Sequence[Flowed]:
    """(batch, heads, positions, features): batches and heads attend to themselves only.

    Several heads of the query may share one of key and value, which mixes heads, never batches.
    """
    if at.axis > 1:
        raise UnprovenError
    for shape in at.inputs[:3]:
        if shape is not None and shape[at.axis] != at.shapes[0][at.axis]:
            raise UnprovenError
    rest = [broadcast(at.only, at.axis, at.shapes[0], shape) for shape in at.inputs[3:]]
    return [at.only, at.only, at.only, *rest]

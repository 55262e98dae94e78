"""Matrix products and attention."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_jd.engines.tape.graph import reader
from lightning_jd.engines.tape.owners.flow._elementwise import broadcast
from lightning_jd.engines.tape.owners.flow._registry import (
    REDUCED,
    Crossing,
    Flow,
    Flowed,
    prove,
    register_flow,
    with_shared,
)


@register_flow("MmBackward0")
def mm(at: Crossing) -> Sequence[Flowed]:
    """Rows of the product come from rows of the left factor, columns from columns of the right."""
    return [at.only, REDUCED] if at.axis == 0 else [REDUCED, at.only]


@register_flow("BmmBackward0")
def bmm(at: Crossing) -> Sequence[Flowed]:
    """A product per slice of the first axis."""
    by_axis: list[list[Flowed]] = [[at.only, at.only], [at.only, REDUCED], [REDUCED, at.only]]
    return by_axis[at.axis]


@register_flow("GroupedMmBackward0")
def grouped_mm(at: Crossing) -> Sequence[Flowed]:
    """Runs of rows, each times a matrix of its own."""
    prove(at.axis == 0 and at.rank == 2)
    prove(not any(shape and len(shape) == 2 for shape in at.inputs[1:]))
    return [at.only, REDUCED]


@register_flow("MvBackward0")
def mv(at: Crossing) -> Sequence[Flowed]:
    """Entries come from rows of the matrix."""
    return [at.only, REDUCED]


def _plus(product: Flow) -> Flow:
    """A product and something that is broadcast to it."""
    return lambda at: [broadcast(at.only, at.shapes[0], at.inputs[0]), *product(at)]


register_flow("AddmmBackward0", facts=reader("beta"))(_plus(mm))
register_flow("BaddbmmBackward0")(_plus(bmm))
register_flow("AddmvBackward0")(_plus(mv))


@register_flow(
    *["LinalgCholeskyExBackward0", "LinalgInvExBackward0", "LinalgSolveTriangularBackward0"],
    *["LinalgSolveExBackward0", "CholeskySolveBackward0", "LinalgMatrixExpBackward0"],
)
def matrices(at: Crossing) -> Sequence[Flowed]:
    """A matrix, or several, per position along the leading axes."""
    leading = at.shapes[0][:-2]
    prove(at.axis < len(leading))
    prove(all(shape is None or shape[:-2] == leading for shape in at.inputs))
    return at.everywhere(at.only)


@register_flow("LinearBackward0")
def linear(at: Crossing) -> Sequence[Flowed]:
    """The last axis is new, all others are those of the input."""
    prove(at.axis != at.rank - 1)
    return with_shared(at, at.only)


@register_flow("TrilinearBackward0")
def bilinear(at: Crossing) -> Sequence[Flowed]:
    """The product inside of ``nn.Bilinear``: rows of both inputs, and a weight."""
    prove(at.axis == 0 and at.rank == 2 and len(at.inputs) == 3)
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
    size = at.shapes[0][at.axis]
    prove(at.axis <= 1)
    prove(all(shape is None or shape[at.axis] == size for shape in at.inputs[:3]))
    rest = [broadcast(at.only, at.shapes[0], shape) for shape in at.inputs[3:]]
    return [at.only, at.only, at.only, *rest]

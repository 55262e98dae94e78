"""Operations along some axes that leave the other axes alone."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_jd.engines.tape.graph import reader
from lightning_jd.engines.tape.owners.flow._registry import (
    Crossing,
    Flowed,
    prove,
    register_flow,
)


@register_flow(
    *["SumBackward1", "MeanBackward1", "AmaxBackward0", "AminBackward0", "LogsumexpBackward0"],
    *["MaxBackward0", "MinBackward0", "MedianBackward1", "NanmedianBackward1", "ModeBackward0"],
    *["ProdBackward1", "NansumBackward0", "LinalgVectorNormBackward0", "KthvalueBackward0"],
    *["NormBackward1", "NormBackward3", "VarBackward0", "StdBackward0"],
    facts=reader("dim", "keepdim"),
)
def reduction(at: Crossing) -> Sequence[Flowed]:
    """Axes that remain keep their owners; a reduced entry belongs to the owner of the result."""
    rank = len(at.input)
    reduced = set(at.dims(0, rank))
    if at.facts[1] is True:
        axis = at.axis
    else:
        axis = [dim for dim in range(rank) if dim not in reduced][at.axis]
    prove(axis not in reduced and at.input[axis] == len(at.only.ids))
    return [at.only.moved(axis)]


@register_flow("VarMeanBackward0", "StdMeanBackward0", facts=reader("dim", "keepdim"))
def two_reductions(at: Crossing) -> Sequence[Flowed]:
    """Two results of one reduction, which must have the same owners where both are used."""
    used = [owners for owners in at.owners if owners is not None]
    prove(all(owners.equals(used[0]) for owners in used))
    return reduction(Crossing(used[:1], at.shapes[:1], at.inputs, at.facts))


@register_flow(
    *["SoftmaxBackward0", "LogSoftmaxBackward0", "SafeSoftmaxBackward0", "CumsumBackward0"],
    *["CumprodBackward0", "LogcumsumexpBackward0", "SortBackward0", "TopkBackward0"],
    *["GluBackward0", "CummaxBackward0", "CumminBackward0"],
    facts=reader("dim"),
)
def along_one_axis(at: Crossing) -> Sequence[Flowed]:
    """Entries mix along one axis, whose size may change; all others stay."""
    prove(at.dim(0, at.rank) != at.axis and len(at.input) == at.rank)
    return [at.only]


@register_flow(
    *["NllLossBackward0", "NllLoss2DBackward0"],
    *["MultiMarginLossBackward0", "MultilabelMarginLossBackward0"],
    facts=reader("reduction"),
)
def class_picking_loss(at: Crossing) -> Sequence[Flowed]:
    """(N, ...) losses of (N, classes, ...) scores, not reduced."""
    prove(at.facts[0] == 0 and len(at.input) == at.rank + 1)
    return [at.only.moved(0 if at.axis == 0 else at.axis + 1)]


@register_flow("CtcLossBackward0", "CtcLossBackward1")
def alignment_loss(at: Crossing) -> Sequence[Flowed]:
    """(N,) losses of (time, N, classes) scores."""
    prove(len(at.input) == 3 and at.rank == 1)
    return [at.only.moved(1)]

"""Operations along some axes, which their arguments name, that leave the other axes alone."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from functools import reduce

from lightning_jd.engines.tape.graph import reader
from lightning_jd.engines.tape.owners.flow._registry import (
    REDUCED,
    Crossing,
    Flow,
    Flowed,
    both,
    prove,
    register_flow,
)


def _all_but(mixed: Callable[[Crossing], Container[int]]) -> Flow:
    """The flow of an operation that mixes some axes; weight and bias are shared."""

    def flow(at: Crossing) -> Sequence[Flowed]:
        prove(at.axis not in mixed(at) and len(at.inputs[0] or at.shapes[0]) == at.rank)
        return _with_shared(at, at.only)

    return flow


def _trailing(at: Crossing, numbers_per_axis: int = 1) -> range:
    """The last axes, of which a fact lists something."""
    (listed,) = at.facts
    prove(isinstance(listed, tuple))
    return range(at.rank - len(listed) // numbers_per_axis, at.rank)


def _with_shared(at: Crossing, flowed: Flowed) -> list[Flowed]:
    """What flows into an activation, followed by a weight and a bias, as far as there are any."""
    listed: list[Flowed] = [flowed, REDUCED, REDUCED]
    return listed[: len(at.inputs)]


register_flow(
    *["SoftmaxBackward0", "LogSoftmaxBackward0", "SafeSoftmaxBackward0", "CumsumBackward0"],
    *["CumprodBackward0", "LogcumsumexpBackward0", "SortBackward0", "TopkBackward0"],
    *["GluBackward0", "CummaxBackward0", "CumminBackward0"],
    *["FftR2CBackward0", "FftC2RBackward0", "FftC2CBackward0"],
    facts=reader("dim"),
)(_all_but(lambda at: at.dims(0, at.rank)))
register_flow("ConstantPadNdBackward0", facts=reader("pad"))(
    _all_but(lambda at: _trailing(at, numbers_per_axis=2))
)
register_flow(
    "NativeLayerNormBackward0", "FusedRmsNormBackward0", facts=reader("normalized_shape")
)(_all_but(_trailing))


@register_flow("UnfoldBackward0", facts=reader("dimension"))
def windows(at: Crossing) -> Sequence[Flowed]:
    """Windows along one axis, their content in a new last axis."""
    prove(at.axis not in (at.dim(0, len(at.input)), at.rank - 1))
    return [at.only]


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
    *["NativeBatchNormBackward0", "CudnnBatchNormBackward0", "MiopenBatchNormBackward0"],
    facts=reader("training"),
)
def batch_norm(at: Crossing) -> Sequence[Flowed]:
    """Channels (axis 1) never mix; the other axes do in training mode."""
    (training,) = at.facts
    if at.axis == 1:  # as in instance normalisation, which folds samples into channels
        affine = at.only.moved(0)
        return [at.only, affine, affine][: len(at.inputs)]
    mixes = training is not False
    return _with_shared(at, None if mixes else at.only)


@register_flow("MkldnnRnnLayerBackward0", facts=reader("mode", "has_biases", "batch_sizes"))
def recurrent_layer(at: Crossing) -> Sequence[Flowed]:
    """(time, batch, features), and (batch, features) of states: samples never mix."""
    by_sample = [
        owners.moved(0)
        for owners, axis in zip(at.owners, (1, 0, 0), strict=False)
        if owners is not None and owners.axis == axis
    ]
    used = sum(owners is not None for owners in at.owners)
    prove(len(by_sample) == used and len(at.inputs) == 7)
    samples = reduce(both, by_sample)
    return [samples.moved(1), REDUCED, REDUCED, REDUCED, REDUCED, samples, samples]

"""Operations on the trailing axes of a batch of images or signals, and normalisations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

from lightning_jd.engines.tape.graph import reader
from lightning_jd.engines.tape.owners.flow._registry import (
    REDUCED,
    Crossing,
    Flowed,
    both,
    prove,
    register_flow,
    with_shared,
)

_POOLS = {
    1: "UpsampleNearest1D UpsampleNearestExact1D UpsampleLinear1D ReflectionPad1D ReplicationPad1D"
    " AdaptiveMaxPool1D AvgPool1D",
    2: "AvgPool2D AdaptiveAvgPool2D MaxPool2DWithIndices MaxPool2D AdaptiveMaxPool2D"
    " FractionalMaxPool2D UpsampleNearest2D UpsampleNearestExact2D UpsampleBilinear2D"
    " UpsampleBilinear2DAa UpsampleBicubic2D UpsampleBicubic2DAa ReflectionPad2D ReplicationPad2D"
    " MkldnnMaxPool2D MkldnnAdaptiveAvgPool2D",
    3: "AvgPool3D AdaptiveAvgPool3D MaxPool3DWithIndices AdaptiveMaxPool3D FractionalMaxPool3D"
    " UpsampleNearest3D UpsampleNearestExact3D UpsampleTrilinear3D ReflectionPad3D"
    " ReplicationPad3D",
}
_TRAILING = {f"{name}Backward0": d for d, names in _POOLS.items() for name in names.split()}


def _leading(at: Crossing, trailing: int) -> Sequence[Flowed]:
    prove(len(at.input) == at.rank and at.axis < at.rank - trailing)
    return [at.only]


for _name, _trailing in _TRAILING.items():
    register_flow(_name)(partial(_leading, trailing=_trailing))


@register_flow("PixelShuffleBackward0", "PixelUnshuffleBackward0")
def pixel_shuffle(at: Crossing) -> Sequence[Flowed]:
    """Channels become pixels: the last three axes mix."""
    return _leading(at, 3)


@register_flow("ConstantPadNdBackward0", facts=reader("pad"))
def constant_pad(at: Crossing) -> Sequence[Flowed]:
    """Two numbers per padded axis, the last axis first."""
    (pad,) = at.facts
    prove(isinstance(pad, tuple))
    return _leading(at, len(pad) // 2)


@register_flow(
    "ConvolutionBackward0", "ConvolutionOverrideableBackward0", "NativeGroupNormBackward0"
)
def one_by_one(at: Crossing) -> Sequence[Flowed]:
    """Samples are convolved, or normalised, one by one; weight and bias are shared."""
    prove(at.axis == 0)
    return with_shared(at, at.only)


@register_flow("Im2ColBackward0", "Col2ImBackward0")
def im2col(at: Crossing) -> Sequence[Flowed]:
    """Patches of each sample."""
    prove(at.axis == 0 and at.shapes[0][0] == at.input[0])
    return [at.only]


@register_flow("UnfoldBackward0", facts=reader("dimension"))
def windows(at: Crossing) -> Sequence[Flowed]:
    """Windows along one axis, their content in a new last axis."""
    prove(at.axis not in (at.dim(0, len(at.input)), at.rank - 1))
    return [at.only]


@register_flow("FftR2CBackward0", "FftC2RBackward0", "FftC2CBackward0", facts=reader("dim"))
def fourier(at: Crossing) -> Sequence[Flowed]:
    """The transformed axes mix."""
    prove(at.axis not in at.dims(0, at.rank) and len(at.input) == at.rank)
    return [at.only]


@register_flow("GridSampler2DBackward0", "GridSampler3DBackward0")
def grid_sampler(at: Crossing) -> Sequence[Flowed]:
    """Each sample is read at places of its own."""
    prove(at.axis == 0)
    return at.everywhere(at.only)


@register_flow(
    "NativeLayerNormBackward0", "FusedRmsNormBackward0", facts=reader("normalized_shape")
)
def layer_norm(at: Crossing) -> Sequence[Flowed]:
    """The trailing axes are normalised together."""
    (normalized,) = at.facts
    prove(isinstance(normalized, tuple) and at.axis < at.rank - len(normalized))
    return with_shared(at, at.only)


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
    return with_shared(at, None if mixes else at.only)


@register_flow(
    "EmbeddingBackward0", "EmbeddingBagBackward0", facts=reader("sparse", "scale_grad_by_freq")
)
def embedding(at: Crossing) -> Sequence[Flowed]:
    """All slices look up one table."""
    return [REDUCED, *[None] * (len(at.inputs) - 1)]


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

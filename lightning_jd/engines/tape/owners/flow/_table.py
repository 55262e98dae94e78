"""Operations whose flow is a line of a table: which axis of the output is which of the inputs.

A line names the axes of the inputs and of the output, as ``einsum`` does:

- a small letter is an axis whose slices never meet; owners follow it to where it is in an input,
- a capital letter is an axis whose slices mix,
- ``...`` are axes like small letters, as many everywhere, ``*`` any number like capital letters,
- ``~`` is an input that is broadcast to the output, ``?`` one of which nothing is proven.

An input without the axis of the owners, as a weight, is shared by all. Further inputs are like the
last one.
"""

from __future__ import annotations

from collections.abc import Sequence

from lightning_jd.engines.tape.graph import Shape, reader
from lightning_jd.engines.tape.owners._owners import Owners
from lightning_jd.engines.tape.owners.flow._registry import (
    REDUCED,
    Crossing,
    Flow,
    Flowed,
    UnprovenError,
    prove,
    register_flow,
)

_ELEMENTWISE = """
    Abs Acos Acosh Add Addcdiv Addcmul Angle Asin Asinh Atan Atan2 Atanh BinaryCrossEntropy
    BinaryCrossEntropyWithLogits Ceil Celu Clamp ClampMax ClampMin Clone Complex Conj ConjPhysical
    Copysign Cos Cosh Deg2Rad Digamma Div Elu Erf Erfc Erfinv Exp Exp2 Expand Expm1 Fill Floor Fmax
    Fmin Fmod Frac Gelu Hardshrink Hardsigmoid Hardswish Hardtanh HuberLoss Hypot I0 Imag LeakyRelu
    Lerp Lgamma Log Log10 Log1P Log2 Logaddexp Logaddexp2 Logit LogSigmoid MaskedFill Maximum
    Minimum Mish MseLoss Mul NanToNum NativeDropout Neg Polar Polygamma Pow PreluKernel Rad2Deg
    Real Reciprocal Relu Relu6 Remainder ResolveConj ResolveNeg Round RreluWithNoise Rsqrt Rsub
    Selu Sgn Sigmoid Sign Silu Sin Sinc Sinh SmoothL1Loss SoftMarginLoss Softplus Softshrink
    SpecialEntr SpecialErfcx SpecialLogNdtr SpecialNdtri SpecialXlog1Py Sqrt Sub Tan Tanh Threshold
    ToCopy Tril Triu Trunc Where Xlogy
"""
_POOLS_1D = """
    UpsampleNearest1D UpsampleNearestExact1D UpsampleLinear1D ReflectionPad1D ReplicationPad1D
    AdaptiveMaxPool1D AvgPool1D
"""
_POOLS_2D = """
    AvgPool2D AdaptiveAvgPool2D MaxPool2DWithIndices MaxPool2D AdaptiveMaxPool2D UpsampleBicubic2D
    FractionalMaxPool2D UpsampleNearest2D UpsampleNearestExact2D UpsampleBilinear2D MkldnnMaxPool2D
    UpsampleBilinear2DAa UpsampleBicubic2DAa ReflectionPad2D ReplicationPad2D
    MkldnnAdaptiveAvgPool2D
"""
_POOLS_3D = """
    AvgPool3D AdaptiveAvgPool3D MaxPool3DWithIndices AdaptiveMaxPool3D FractionalMaxPool3D
    UpsampleNearest3D UpsampleNearestExact3D UpsampleTrilinear3D ReflectionPad3D ReplicationPad3D
"""
_MATRICES = "LinalgCholeskyEx LinalgInvEx LinalgSolveTriangular LinalgSolveEx CholeskySolve"
_ATTENTION = """
    ScaledDotProductFlashAttentionForCpu ScaledDotProductFlashAttention
    ScaledDotProductEfficientAttention ScaledDotProductCudnnAttention
    ScaledDotProductFusedAttentionOverrideable
"""
_CLASS_LOSSES = "NllLoss NllLoss2D MultiMarginLoss MultilabelMarginLoss"
#: Lines, and the operations that they are about.
_LINES: dict[str, str] = {
    "ik,kj->ij": "Mm",
    "bik,bkj->bij": "Bmm",
    "ij,j->i": "Mv",
    "~,ik,kj->ij": "Addmm",
    "~,bik,bkj->bij": "Baddbmm",
    "~,ij,j->i": "Addmv",
    "...I,OI,O->...O": "Linear",
    "nI,EIO->nO": "GroupedMm",  # runs of rows, each times a matrix of its own
    "n*,*,n*->nO": "Trilinear",  # inside of `nn.Bilinear`: rows of both inputs, and a weight
    "bh*,bh*,bh*,~->bh*": _ATTENTION,  # several heads may share keys, which mixes heads
    "...IJ->...IJ": f"{_MATRICES} LinalgMatrixExp",
    "n*,*->n*": "Convolution ConvolutionOverrideable NativeGroupNorm",
    "n*->n*": "Im2Col Col2Im GridSampler2D GridSampler3D",
    "...A->...A": _POOLS_1D,
    "...AB->...AB": _POOLS_2D,
    "...ABC->...ABC": f"{_POOLS_3D} PixelShuffle PixelUnshuffle",
    "...R->...": "ViewAsComplex",
    "...->...R": "ViewAsReal",
    "nC...->n...": _CLASS_LOSSES,
    "TnC->n": "CtcLoss",
    "*,?->...": "Embedding EmbeddingBag",
}
#: Arguments that rules, or who else reads a signature, depend on.
_FACTS = {
    "Addmm": reader("beta"),
    **dict.fromkeys(_CLASS_LOSSES.split(), reader("reduction")),
    **dict.fromkeys(("Embedding", "EmbeddingBag"), reader("sparse", "scale_grad_by_freq")),
}


def carried(line: str) -> Flow:
    """The flow that a line of the table describes."""
    listed, output = line.split("->")
    inputs = listed.split(",")

    def flow(at: Crossing) -> Sequence[Flowed]:
        name = _axes(output, at.rank)[at.axis]
        prove(name != "*" and not name.isupper())
        several = [*inputs, *inputs[-1:] * len(at.inputs)]
        return [
            _into(name, spec, at, shape) for spec, shape in zip(several, at.inputs, strict=False)
        ]

    return flow


def _into(name: str, spec: str, at: Crossing, shape: Shape | None) -> Flowed:
    """What flows into one input along an axis of a name."""
    if spec == "~":
        return broadcast(at.only, at.shapes[0], shape)
    if shape is None or spec == "?":
        return None
    names = _axes(spec, len(shape))
    if name not in names:
        prove(name[0] != "." or "..." not in spec)  # else their numbers differ
        return REDUCED
    prove(shape[names.index(name)] == len(at.only.ids))
    return at.only.moved(names.index(name))


def _axes(spec: str, rank: int) -> list[str]:
    """The names of the axes of a tensor; those of ``...`` tell how many there are.

    Example:
        >>> _axes("...IJ", 4), _axes("n*", 3)
        (['.0/2', '.1/2', 'I', 'J'], ['n', '*', '*'])
    """
    before, many, after = spec.partition("...") if "..." in spec else spec.partition("*")
    number = rank - len(before) - len(after)
    prove(number >= 0 if many else number == 0)
    middle = ["*"] * number if many == "*" else [f".{k}/{number}" for k in range(number)]
    return [*before, *middle, *after]


def broadcast(owners: Owners, output: Shape, shape: Shape | None) -> Flowed:
    """Owners of an input that was broadcast to the output; it has no shape without a gradient."""
    if owners.axis is None:
        raise UnprovenError
    if shape is None or len(shape) > len(output):
        return None
    offset = len(output) - len(shape)
    if any(size not in (1, out) for size, out in zip(shape, output[offset:], strict=True)):
        return None  # a loss that was reduced, or an operation that is not what its name says
    axis = owners.axis - offset
    if axis < 0 or shape[axis] != len(owners.ids):
        return REDUCED
    return owners.moved(axis)


_ALONE = frozenset(f"{name}Backward{k}" for name in _ELEMENTWISE.split() for k in range(4))


def is_elementwise(name: str) -> bool:
    """Whether a node acts on each entry alone."""
    return name in _ALONE


for _line, _names in _LINES.items():
    for _name in _names.split():
        register_flow(f"{_name}Backward0", facts=_FACTS.get(_name))(carried(_line))
register_flow("CtcLossBackward1")(carried("TnC->n"))
register_flow(*_ALONE)(carried("~->..."))

"""Operations that act on each entry alone, with or without broadcasting."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_jd.engines.tape.graph import Shape
from lightning_jd.engines.tape.owners._owners import Owners
from lightning_jd.engines.tape.owners.flow._registry import (
    REDUCED,
    Crossing,
    Flowed,
    UnprovenError,
    register_flow,
)

_NAMES = """
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
""".split()


_ELEMENTWISE = frozenset(f"{name}Backward{version}" for name in _NAMES for version in range(4))


def is_elementwise(name: str) -> bool:
    """Whether a node acts on each entry alone."""
    return name in _ELEMENTWISE


@register_flow(*_ELEMENTWISE)
def elementwise(at: Crossing) -> Sequence[Flowed]:
    """Entry q of an input is broadcast to some entries of the output, and matters to these only."""
    return [broadcast(at.only, at.shapes[0], shape) for shape in at.inputs]


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

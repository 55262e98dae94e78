r"""Compares what rules, and programs, deliver with ordinary backward passes.

For any v, :math:`v^\top G v = \lVert J^\top v \rVert^2`, and the same for the share of each
parameter. A wrong Gramian passes for a random v with probability zero. :math:`J^\top v` is taken
from autograd on the parameters themselves, never from the tape; the gradients that the tape gives
for the weights v are compared with it as well.

The entries of v are powers of two, which commute with rounding: where instances do not mix, both
sides meet the same cotangents, bit for bit, and only the last sums round differently. The tolerance
is relative to the lengths of gradients, so that it does not depend on the scale of the losses.
Where it is exceeded, as where terms cancel in half precision, rounding errors are measured.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_jd.engines._parameters import to_columns
from lightning_jd.engines.tape.run import Ledger, Replay
from lightning_jd.errors import GraphError
from lightning_jd.linalg import has_float64, in_float64

#: ``Jᵀ v`` of some parameters, from autograd.
Ordinary = Callable[[Tensor, Sequence[int]], dict[int, Tensor]]

#: Parameters that are only known together, and their share of the Gramian.
Component = tuple[tuple[int, ...], Tensor]

#: Rounding errors of ordinary passes and of the tape, relative to the length of a gradient: about
#: the square root of the machine precision, below the errors of a wrong rule.
_TOLERANCE = {torch.float64: 2e-8, torch.float32: 5e-4, torch.float16: 0.02, torch.bfloat16: 0.05}
#: Rounding errors in units of the machine precision, relative to all gradients together: where
#: terms cancel, as above a normalisation, the sum is as far from zero as this.
_CANCELLED = {torch.float64: 64.0, torch.float32: 64.0, torch.float16: 1.0, torch.bfloat16: 0.5}
#: Rounding errors of a product of rows, in units of the machine precision.
_OF_PRODUCTS = 30.0
#: Numbers below the smallest that count, in units of that.
_VANISHED = 16.0
#: Powers of two round alike, these factors do not; and how many times what they show is noise.
_SCALES, _FEW = (1.0, 0.75, 0.625, 0.875, 1.25), 6.0
#: Rounding errors that hide other errors, in units of the tolerance.
_LOUD = 2.0
#: How small weights are that show what clips gradients, or adds to them: rules see losses that
#: weigh 1. Powers of two, since these are exact; float16 has no room for small ones.
_SMALL = {torch.float64: 1 / 64, torch.float32: 1 / 64, torch.bfloat16: 1 / 64, torch.float16: 0.5}
#: Deviations from linearity that are rounding, in units of the machine precision.
_LINEAR = 8.0
#: Numbers whose length a CPU measures at a time.
_PIECE = 1 << 15

#: The user's random numbers (dropout, shuffling) must not depend on whether a step is certified.
_RANDOM = torch.Generator().manual_seed(0)


@dataclass(frozen=True)
class Mismatch:
    """Parameters whose share of the Gramian, or whose gradient, is wrong.

    Attributes:
        parameters: Their positions; several if they are only known together.
        what: ``"Gramian"`` or ``"gradient"``; ``"program"`` if a program is wrong, and not the
            rules.
        error: The error relative to the ordinary gradient.
    """

    parameters: tuple[int, ...]
    what: str
    error: float


class ProgramResult(NamedTuple):
    """The Gramian and one gradient of a program, whose buffers are free.

    Attributes:
        G: The Gramian.
        v: A vector.
        gradients: The rows, combined with the vector, flat, by parameter.
    """

    G: Tensor
    v: Tensor
    gradients: dict[int, Tensor]

    @classmethod
    def of(cls, replay: Replay, v: Tensor) -> ProgramResult:
        """Ask a program for a gradient."""
        found = {p: to_columns(gradient) for p, gradient in replay.gradients(v).items()}
        return cls(replay.G, v, found)

    def off(self, exact: Mapping[int, Tensor]) -> float:
        """The distance of the gradients from those of an ordinary pass."""
        if not bool(torch.isfinite(self.G).all()) or self.gradients.keys() != exact.keys():
            return inf
        return norm_of({p: self.gradients[p] - exact[p] for p in exact}, list(exact))


class Rounding:
    """How far results may be from exact ones.

    Args:
        dtype: The least precise type that takes part.
        v: The vector.
        total: The length of the gradients of all parameters, see :func:`length_of`.
    """

    def __init__(self, dtype: torch.dtype, v: Tensor, total: float) -> None:
        number, self.number = torch.finfo(dtype), torch.finfo(v.dtype)
        self.dtype, self.eps, self.weight = dtype, number.eps, float(v.abs().sum())
        self.vanished = _VANISHED * number.tiny * number.eps * self.weight
        self._cancelled = _CANCELLED[dtype] * number.eps * total

    def of_gradient(self, length: float) -> float:
        """The largest distance of two gradients of one length that are equal in theory."""
        return _TOLERANCE[self.dtype] * length + self._cancelled + self.vanished

    def fault(
        self,
        expected: float,
        length: float,
        distance: float,
        squared: float | None = None,
        noise: float = 0.0,
    ) -> tuple[str, float] | None:
        """The wrong quantity of some parameters, and its error.

        Args:
            expected: The length of their gradient for random signs, see :func:`length_of`.
            length: The length of the ordinary gradient.
            distance: The distance of the delivered gradient from it.
            squared: ``vᵀ G v``, with their share of the Gramian, where that is compared.
            noise: Measured rounding errors of an ordinary pass.
        """
        slack = self.of_gradient(expected) + noise
        if not distance <= slack:
            return "gradient", distance
        if squared is None:
            return None
        difference = abs(squared - length**2)
        vanished = self.number.tiny * self.number.eps * self.weight**2
        products = _OF_PRODUCTS * (self.number.eps * expected**2 + vanished)
        between = (max(0.0, squared) ** 0.5 + length) * slack + products
        return None if difference <= between else ("Gramian", difference**0.5)


def length_of(gramian: Tensor, v: Tensor) -> float:
    """About the length of ``Jᵀ v``, if the signs of v are random."""
    lengths = in_float64(v).abs() * in_float64(gramian.diagonal()).clamp(min=0).sqrt()
    return float(lengths.norm())


def certificate_vector(G: Tensor, dtype: torch.dtype, *, is_linear: bool) -> Tensor:
    """The vector v of a certificate.

    Args:
        G: The Gramian, shape (m, m).
        dtype: The least precise type that takes part.
        is_linear: Whether gradients are known to be linear in the losses: there is no hook, and no
            function of the user, on the way. If not, weights are small.
    """
    v = random_vector(G, 1e6 if torch.finfo(dtype).bits > 16 else 1e3)
    return v if is_linear else v * _SMALL[dtype]


def random_vector(G: Tensor, spread: float, generator: torch.Generator | None = None) -> Tensor:
    """Random signs, and powers of two that let every objective weigh about the same.

    Neighbours have opposite signs, two by two: equal weights hide what mixes rows.

    Args:
        G: The Gramian, shape (m, m).
        spread: The largest ratio of two weights that is allowed for the sake of balance.
        generator: A source of random numbers; by default one that nobody else draws from.
    """
    norms = G.diagonal().clamp(min=0).sqrt()
    floor = norms.max().clamp(min=torch.finfo(G.dtype).tiny) / spread
    random = torch.rand(2, len(G), generator=generator or _RANDOM).to(G)
    signs = torch.where(random[1] < 0.5, -1.0, 1.0)
    signs[1::2] = -signs[:-1:2]
    balance = torch.log2(norms.max() / torch.maximum(norms, floor)).nan_to_num(0.0)
    return signs * torch.exp2((balance + random[0]).round())


def mismatches(
    ledger: Ledger,
    v: Tensor,
    ordinary: Ordinary,
    dtype: torch.dtype,
    plain: Collection[int] = (),
    *,
    is_retry: bool = False,
    program: ProgramResult | None = None,
) -> list[Mismatch] | None:
    """Compare shares and gradients with those of an ordinary backward pass.

    Args:
        ledger: A ledger that noted the share of each contribution.
        v: The vector.
        ordinary: Ordinary backward passes.
        dtype: The least precise type that takes part.
        plain: Parameters whose rows come from autograd itself, so that there is nothing to compare.
        is_retry: Whether another vector has shown more noise than an error is allowed to be.
        program: The result of the program for the same vector, if there is one.

    Returns:
        ``None`` if the ordinary gradients are not finite, so that nothing can be compared: a loss
        that was left out may be NaN, and zero times that is NaN.
    """
    components = [c for c in _by_component(ledger.shares) if not set(c[0]) <= set(plain)]
    chosen = [p for parameters, _ in components for p in parameters]
    rounding = Rounding(dtype, v, length_of(ledger.G, v))
    found = _apart(ordinary(v, chosen))
    lengths = {p: norm_of(found, [p]) for p in found}
    if not all(map(isfinite, lengths.values())):
        return None
    distance = 0.0 if program is None else program.off(found)
    off = _off({p: found[p] for p in found.keys() - ledger.unkept}, ledger, v)
    compared = [("", *component, norm_of(off, component[0])) for component in components]
    if program is not None:
        compared.append(("program", tuple(chosen), program.G, distance))
    del found, off, program  # the next passes need the memory
    wrong, drowned = [], set[int]()
    for of, parameters, share, distance in compared:
        length = sum(lengths.get(p, 0.0) ** 2 for p in parameters) ** 0.5
        squared = max(0.0, float(in_float64(v) @ in_float64(share) @ in_float64(v)))
        known = length_of(share, v), length, distance, squared
        if rounding.fault(*known) is None:
            continue
        noise = _noise(parameters, v, ordinary, rounding) if isfinite(distance) else 0.0
        is_loud = noise > _LOUD * _TOLERANCE[dtype] * length
        if is_retry and is_loud:
            continue  # the gradient is zero in theory
        if (fault := rounding.fault(*known, noise)) is not None:
            what, error = fault
            wrong.append(Mismatch(parameters, of or what, error / length if length else inf))
        elif not of and is_loud:
            drowned |= set(parameters)
    if drowned and not is_retry:
        # Rows that are mostly rounding count as much as the others in v, and hide them.
        others = set(chosen) - drowned | set(plain)
        equal = v.sign() * v.abs().min()
        wrong += mismatches(ledger, equal, ordinary, dtype, others, is_retry=True) or ()
    return wrong


def _noise(parameters: Sequence[int], v: Tensor, ordinary: Ordinary, rounding: Rounding) -> float:
    """The rounding errors of an ordinary pass, from passes that round in other ways.

    Zero if the pass is not linear in v, for then other factors show no rounding. A power of two
    tells: it is exact.
    """
    small, scales = _SMALL[rounding.dtype], _SCALES
    less, once, *more = [_divided(ordinary(v * f, parameters), f) for f in (small, *scales)]
    for p, gradient in once.items():
        slack = _LINEAR * rounding.eps * _length(gradient) + rounding.vanished
        if not _length(less[p] - gradient) <= slack:
            return 0.0
    mean = {p: sum([each[p] for each in more], once[p]) / len(scales) for p in once}
    apart = [{p: each[p] - mean[p] for p in mean} for each in (once, *more)]
    return _FEW * max(norm_of(each, parameters) for each in apart)


def _divided(gradients: Mapping[int, Tensor], factor: float) -> dict[int, Tensor]:
    return {p: gradient / factor for p, gradient in gradients.items()}


def _off(ordinary: dict[int, Tensor], ledger: Ledger, v: Tensor) -> dict[int, Tensor]:
    """What ordinary gradients are off from those of the tape, in their place."""
    for parameter, part in ledger.parts_of_gradients(v, only=ordinary.keys()):
        ordinary[parameter].sub_(part.to(ordinary[parameter].dtype))
        del part  # the next one needs the memory
    return ordinary


def _apart(gradients: dict[int, Tensor]) -> dict[int, Tensor]:
    """The same, such that each can be written to: autograd may give one tensor out twice."""
    seen: set[int] = set()
    for parameter, gradient in gradients.items():
        memory = gradient.untyped_storage().data_ptr()
        if memory in seen or not gradient.is_contiguous():
            gradients[parameter] = gradient.clone()
        seen.add(memory)
    return gradients


def norm_of(gradients: Mapping[int, Tensor], parameters: Sequence[int]) -> float:
    """The length of some gradients together; in single precision, small squares would vanish."""
    squares = [_length(gradients[p]) ** 2 for p in parameters if p in gradients]
    return float(sum(squares) ** 0.5)


def _length(gradient: Tensor) -> float:
    if not has_float64(gradient.device):
        gradient = gradient.cpu()
    if gradient.device.type != "cpu" or gradient.numel() <= _PIECE:
        return float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
    # a CPU copies all of it to double precision, which may well be the largest tensor of a step
    lengths = [torch.linalg.vector_norm(p, dtype=torch.float64) for p in gradient.split(_PIECE)]
    return float(torch.stack(lengths).norm())


def _by_component(
    shares: Sequence[Component],
) -> list[Component]:
    """Add the shares of contributions that have a parameter in common."""
    components: list[tuple[set[int], Tensor]] = []
    for parameters, share in shares:
        together, total = set(parameters), share
        apart = []
        for others, other in components:
            if others & together:
                together |= others
                total = total + other
            else:
                apart.append((others, other))
        components = [*apart, (together, total)]
    return [(tuple(sorted(parameters)), share) for parameters, share in components]


def report(
    wrong: Sequence[Mismatch], names: Sequence[str], *, is_linear: bool, raises: bool
) -> None:
    """Name the parameters that are wrong, in warnings or an error.

    Raises:
        GraphError: If it is.
    """
    by_rules = [found for found in wrong if found.what != "program"]
    if not by_rules:
        if wrong:
            _warn(
                "A traced step must do what the rules do, got another result, so every step runs "
                "the rules from now on, which is exact but slower. A rule must decide by shapes "
                "and by what it reads with `site.saved`, not by anything else that changes from "
                "step to step."
            )
        return
    listed = ", ".join(
        f"{' and '.join(repr(names[p]) for p in found.parameters)} "
        f"({found.what}, relative error {found.error:.1e})"
        for found in by_rules
    )
    must = f"The Gramian must agree with an ordinary backward pass, got a mismatch for {listed}. "
    if raises:
        raise GraphError(f"{must}Pass `check='auto'` to compute them row by row.")
    remedy = "Please report the model."
    if not is_linear:
        remedy = (
            "A hook, or a Function of yours, clips or normalises gradients on the way to them, or "
            "mixes instances. Clip the final gradients instead, as "
            "`Trainer(gradient_clip_val=...)` does. If there is none, please report the model."
        )
    _warn(
        f"{must}The rows of these parameters are computed one by one from now on, each as autograd "
        f"gives it for its objective alone, which is exact but slower. {remedy}"
    )


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=7)

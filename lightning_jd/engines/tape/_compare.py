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
from lightning_jd.engines.tape._rounding import (
    TOLERANCE,
    Rounding,
    length_of,
    norm,
    norm_of,
    squared_length,
)
from lightning_jd.engines.tape.run import Ledger, Replay
from lightning_jd.errors import GraphError

#: ``Jᵀ v`` of some parameters, from autograd.
Ordinary = Callable[[Tensor, Sequence[int]], dict[int, Tensor]]

#: Parameters that are only known together, and their share of the Gramian.
Component = tuple[tuple[int, ...], Tensor]

#: Powers of two round alike, these factors do not; and how many times what they show is noise.
_SCALES, _FEW = (1.0, 0.75, 0.625, 0.875, 1.25), 6.0
#: Rounding errors that hide other errors, in units of the tolerance.
_LOUD = 2.0
#: The largest weight that shows what clips gradients, or adds to them: rules see losses that weigh
#: 1, so it is less. Powers of two, since these are exact; float16 has no room for small ones.
_SMALL = {torch.float64: 1 / 64, torch.float32: 1 / 64, torch.bfloat16: 1 / 64, torch.float16: 0.5}
#: Deviations from linearity that are rounding, in units of the machine precision.
_LINEAR = 8.0
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

    def mismatch(
        self, ledger: Ledger, reached: Collection[int], rounding: Rounding
    ) -> Mismatch | None:
        """Compare with a ledger, whose own gradients for the vector are certified.

        Args:
            ledger: What the rules gave.
            reached: The parameters that autograd has a gradient for.
            rounding: How far results may be from exact ones.
        """
        apart = inf
        if bool(torch.isfinite(self.G).all()) and self.gradients.keys() == set(reached):
            apart = norm_of(_off(_apart(self.gradients), ledger, self.v), list(reached))
        length = squared_length(ledger.G, self.v) ** 0.5
        known = length_of(ledger.G, self.v), length, apart, squared_length(self.G, self.v)
        if rounding.fault(*known) is None:
            return None
        return Mismatch(tuple(reached), "program", apart / length if length else inf)


def certificate_vector(
    G: Tensor, dtype: torch.dtype, *, is_linear: bool, columns: int = 1
) -> Tensor:
    """The vector v of a certificate.

    Args:
        G: The Gramian, shape (m, m).
        dtype: The least precise type that takes part.
        is_linear: Whether gradients are known to be linear in the losses: there is no hook, and no
            function of the user, on the way. If not, weights are small, and those of eight
            neighbours differ: equal weights hide what mixes rows.
        columns: The number of losses of each instance.
    """
    spread = 1e6 if torch.finfo(dtype).bits > 16 else 1e3
    if is_linear:
        return random_vector(G, spread, columns=columns)
    v = random_vector(G, 1.0 if dtype == torch.float16 else spread, columns=columns)
    instance = torch.arange(len(v), device=v.device) // columns
    v = v * (1 + 0.25 * (instance // 2 % 4))  # exact in every type
    return v * (_SMALL[dtype] / torch.exp2(v.abs().max().log2().ceil()))


def random_vector(
    G: Tensor, spread: float, generator: torch.Generator | None = None, columns: int = 1
) -> Tensor:
    """Random signs, and powers of two that let every objective weigh about the same.

    Neighbours have opposite signs, two by two: equal weights hide what mixes rows.

    Args:
        G: The Gramian, shape (m, m).
        spread: The largest ratio of two weights that is allowed for the sake of balance.
        generator: A source of random numbers; by default one that nobody else draws from.
        columns: The number of losses of each instance; its neighbours are those of another one.
    """
    norms = G.diagonal().clamp(min=0).sqrt()
    floor = norms.max().clamp(min=torch.finfo(G.dtype).tiny) / spread
    random = torch.rand(2, len(G), generator=generator or _RANDOM).to(G)
    signs = torch.where(random[1] < 0.5, -1.0, 1.0).view(-1, columns)
    signs[1::2] = -signs[:-1:2]
    balance = torch.log2(norms.max() / torch.maximum(norms, floor)).nan_to_num(0.0, neginf=0.0)
    return signs.view(-1) * torch.exp2((balance + random[0]).round())


def mismatches(
    ledger: Ledger,
    v: Tensor,
    ordinary: Ordinary,
    dtype: torch.dtype,
    chosen: Collection[int],
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
        chosen: The parameters: those that some loss reaches, and whose rows do not come from
            autograd itself.
        is_retry: Whether another vector has shown more noise than an error is allowed to be.
        program: The result of the program for the same vector, if there is one.

    Returns:
        ``None`` if the ordinary gradients are not finite, so that nothing can be compared: a loss
        that was left out may be NaN, and zero times that is NaN.
    """
    nothing = [((p,), torch.zeros_like(ledger.G)) for p in chosen]
    components = _by_component(nothing + ledger.shares)
    components = [c for c in components if not set(chosen).isdisjoint(c[0])]
    chosen = [p for parameters, _ in components for p in parameters]
    rounding = Rounding(dtype, v, length_of(ledger.G, v))
    found = _apart(ordinary(v, chosen))
    lengths = {p: norm_of(found, [p]) for p in found}
    if not all(map(isfinite, lengths.values())):
        return None
    off = _off({p: found[p] for p in found.keys() - ledger.unkept}, ledger, v)
    distances = [norm_of(off, parameters) for parameters, _ in components]
    del found, off  # the next passes need the memory
    wrong, drowned = [], set[int]()
    for (parameters, share), distance in zip(components, distances, strict=True):
        length = sum(lengths.get(p, 0.0) ** 2 for p in parameters) ** 0.5
        known = length_of(share, v), length, distance, squared_length(share, v)
        if rounding.fault(*known) is None:
            continue
        noise = _noise(parameters, v, ordinary, rounding) if isfinite(distance) else 0.0
        is_loud = noise > _LOUD * TOLERANCE[dtype] * length
        if is_retry and is_loud:
            continue  # the gradient is zero in theory
        if (fault := rounding.fault(*known, noise)) is None:
            drowned |= set(parameters) if is_loud else set()
        elif not _holds_by_rows(parameters, share, ledger, v, ordinary, dtype):
            what, error = fault
            wrong.append(Mismatch(parameters, what, error / length if length else inf))
    if drowned and not is_retry:
        # Rows that are mostly rounding count as much as the others in v, and hide them.
        equal = v.sign() * v.abs().min()
        wrong += mismatches(ledger, equal, ordinary, dtype, drowned, is_retry=True) or ()
    if program is not None and (replayed := program.mismatch(ledger, lengths, rounding)):
        wrong.append(replayed)
    return wrong


def _holds_by_rows(
    parameters: Sequence[int],
    share: Tensor,
    ledger: Ledger,
    v: Tensor,
    ordinary: Ordinary,
    dtype: torch.dtype,
) -> bool:
    """Whether each row is what autograd gives for its objective, and products are those of rows.

    In a pass for all rows, the numbers of one may be lost beside larger ones of another that are
    zero together. That is no error of the tape.
    """
    total, noise = dict[int, Tensor](), 0.0
    for k in range(len(v)):
        e = torch.zeros_like(v)
        e[k] = v[k]
        row = _apart(ordinary(e, parameters))
        total = {p: total[p] + row[p] if p in total else row[p].clone() for p in row}
        length, kept = norm_of(row, parameters), row.keys() - ledger.unkept
        distance = norm_of(_off({p: row[p] for p in kept}, ledger, e), parameters)
        rounding = Rounding(dtype, e, length_of(ledger.G, e))
        known = length_of(share, e), length, distance, squared_length(share, e)
        if rounding.fault(*known) is not None:
            of_row = _noise(parameters, e, ordinary, rounding)
            if rounding.fault(*known, of_row) is not None:
                return False
            noise += of_row**2
    rounding = Rounding(dtype, v, length_of(ledger.G, v))
    known = length_of(share, v), norm_of(total, parameters), 0.0, squared_length(share, v)
    return rounding.fault(*known, noise**0.5) is None


def _noise(parameters: Sequence[int], v: Tensor, ordinary: Ordinary, rounding: Rounding) -> float:
    """The rounding errors of an ordinary pass, from passes that round in other ways.

    Zero if the pass is not linear in v, for then other factors show no rounding. A power of two
    tells: it is exact.
    """
    small, scales = _SMALL[rounding.dtype], _SCALES
    less, once, *more = [_divided(ordinary(v * f, parameters), f) for f in (small, *scales)]
    for p, gradient in once.items():
        slack = _LINEAR * rounding.eps * norm(gradient) + rounding.vanished
        if not norm(less[p] - gradient) <= slack:
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

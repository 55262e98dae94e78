r"""Compares what the tape delivers with ordinary backward passes.

For any v, :math:`v^\top G v = \lVert J^\top v \rVert^2`, and the same for the share of each
parameter. A wrong Gramian passes for a random v with probability zero. :math:`J^\top v` is taken
from autograd on the parameters themselves, never from the tape; the gradients that the tape gives
for the weights v are compared with it as well.

The entries of v are powers of two, which commute with rounding: where instances do not mix, both
sides meet the same cotangents, bit for bit, and only the last sums round differently. How much that
is is measured, parameter by parameter, where it is not obvious: the passes of two parts of v add up
to that of v in exact arithmetic. So there is no tolerance that depends on the scale of the losses,
and noise further up in a pass of half precision hides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite

import torch
from torch import Tensor

from lightning_jd.engines.tape.run import Ledger
from lightning_jd.linalg import has_float64, in_float64

#: ``Jᵀ v`` of some parameters, from autograd.
Ordinary = Callable[[Tensor, Sequence[int]], dict[int, Tensor]]

#: Parameters that are only known together, and their share of the Gramian.
Component = tuple[tuple[int, ...], Tensor]

#: How many times the noise of ordinary passes is still noise.
_FEW = 6.0
#: Samples of the noise, at most: two sums of a short parameter may agree by chance.
_SAMPLES = 5
#: Rounding errors, in units of the machine precision, that are not looked into.
_FLOOR = 4.0
#: Rounding errors of a product of rows, in units of the machine precision.
_OF_PRODUCTS = 30.0
#: The same, where the machine precision is at most the second number.
_QUICK = 64.0
_PRECISE = 1e-6
#: Numbers whose length a CPU measures at a time.
_PIECE = 1 << 15

#: The user's random numbers (dropout, shuffling) must not depend on whether a step is certified.
_RANDOM = torch.Generator().manual_seed(0)


@dataclass(frozen=True)
class Mismatch:
    """Parameters whose share of the Gramian, or whose gradient, is wrong.

    Attributes:
        parameters: Their positions; several if they are only known together.
        what: ``"Gramian"`` or ``"gradient"``; ``"linearity"`` if the ordinary gradient itself is
            not linear in the losses.
        error: The error relative to the ordinary gradient.
    """

    parameters: tuple[int, ...]
    what: str
    error: float


@dataclass
class _Comparison:
    """Norms over some parameters that are only known together.

    Attributes:
        parameters: Their positions.
        share: Their share of the Gramian.
        ordinary: The ordinary gradient.
        off: The distance of the gradient of the tape from it, where the tape has it.
        noise: The distance between an ordinary gradient and the sum of those of two parts; the
            largest that was seen.
    """

    parameters: tuple[int, ...]
    share: Tensor
    ordinary: float
    off: float
    noise: float = 0.0

    def mismatch(self, v: Tensor, eps: float, total: float) -> Mismatch | None:
        """What is wrong beyond the noise.

        Args:
            v: The vector.
            eps: The machine precision of the least precise type that takes part.
            total: The length of the gradients of all parameters, see :func:`_length`.
        """
        length = length_of(self.share, v)
        slack = _FEW * self.noise + (_QUICK if eps <= _PRECISE else _FLOOR) * eps * length
        if self.ordinary == 0:  # what is zero in theory is so by luck, and has no noise of its own
            slack += _FLOOR * eps * total
        share, v = in_float64(self.share), in_float64(v)
        if not self.off <= slack:
            return Mismatch(self.parameters, "gradient", self._relative(self.off))
        squared = max(0.0, float(v @ share @ v))
        number = torch.finfo(self.share.dtype)
        vanishing = number.tiny * number.eps * float(v.abs().sum()) ** 2  # below the subnormals
        rounding = _OF_PRODUCTS * (number.eps * length**2 + vanishing)
        between = (squared**0.5 + self.ordinary) * slack
        difference = abs(squared - self.ordinary**2)
        if not difference <= between + rounding:
            return Mismatch(self.parameters, "Gramian", self._relative(difference**0.5))
        return None

    def _relative(self, distance: float) -> float:
        return distance / self.ordinary if self.ordinary else inf


def length_of(gramian: Tensor, v: Tensor) -> float:
    """About the length of ``Jᵀ v``, if the signs of v are random."""
    lengths = in_float64(v).abs() * in_float64(gramian.diagonal()).clamp(min=0).sqrt()
    return float(lengths.norm())


def random_vector(G: Tensor, spread: float) -> Tensor:
    """Random signs, and powers of two that let every objective weigh about the same.

    Args:
        G: The Gramian, shape (m, m).
        spread: The largest ratio of two weights that is allowed for the sake of balance.
    """
    norms = G.diagonal().clamp(min=0).sqrt()
    floor = norms.max().clamp(min=torch.finfo(G.dtype).tiny) / spread
    random = torch.rand(2, len(G), generator=_RANDOM).to(G)
    signs = torch.where(random[1] < 0.5, -1.0, 1.0)
    balance = torch.log2(norms.max() / torch.maximum(norms, floor)).nan_to_num(0.0)
    return signs * torch.exp2((balance + random[0]).round())


def mismatches(
    ledger: Ledger,
    v: Tensor,
    ordinary: Ordinary,
    sizes: Mapping[int, int],
    eps: float,
    plain: Collection[int] = (),
    *,
    is_linear: bool = True,
) -> list[Mismatch] | None:
    """Compare shares and gradients, a part of the parameters at a time to save memory.

    Args:
        ledger: A ledger that noted the share of each contribution.
        v: The vector.
        ordinary: Ordinary backward passes.
        sizes: The number of columns of each parameter.
        eps: The machine precision of the least precise type that takes part.
        plain: Parameters whose rows come from autograd itself, so that there is nothing to compare.
        is_linear: Whether gradients are known to be linear in the losses: there is no hook, and no
            function of the user, on the way.

    Returns:
        ``None`` if the ordinary gradients are not finite, so that nothing can be compared: a loss
        that was left out may be NaN, and zero times that is NaN.
    """
    components = [c for c in _by_component(ledger.shares) if not set(c[0]) <= set(plain)]
    chosen = [p for parameters, _ in components for p in parameters]
    once = ordinary(v, chosen)
    if not is_linear:
        found = _not_linear(once, ordinary(v / 2, chosen), eps)
        if found is None or found:
            return found
    suspects = _suspects(components, ledger, v, _apart(once), eps)
    del once
    if suspects is None:
        return None
    found = []
    for batch in _batches(suspects, sizes):
        wrong = _in_batch(batch, ledger, v, ordinary, eps)
        if wrong is None:
            return None
        found += wrong
    return found


def _not_linear(
    once: Mapping[int, Tensor], half: Mapping[int, Tensor], eps: float
) -> list[Mismatch] | None:
    """Parameters whose gradient is not halved with the losses, as where something clips it.

    To halve is exact in every type, so that there is next to no rounding. Without this, what
    depends on the size of the losses would pass for noise.
    """
    found = []
    for p in once:
        length, off = norm_of(once, [p]), _length(2 * half[p] - once[p])
        if not isfinite(length + off):
            return None
        if off > 2 * _FLOOR * eps * length:
            found.append(Mismatch((p,), "linearity", off / length if length else inf))
    return found


def _suspects(
    components: Sequence[Component],
    ledger: Ledger,
    v: Tensor,
    found: dict[int, Tensor],
    eps: float,
) -> list[Component] | None:
    """What differs from the ordinary gradients by more than some rounding errors.

    Nearly nothing does, so that the noise of most parameters need not be measured. Gradients are
    compared in place: at a time, there is one of each parameter.
    """
    lengths = {p: norm_of(found, [p]) for p in found}
    if not all(map(isfinite, lengths.values())):
        return None
    off = _off({p: found[p] for p in found.keys() - ledger.unkept}, ledger, v)
    total = length_of(ledger.G, v)
    suspects = []
    for parameters, share in components:
        length = sum(lengths.get(p, 0.0) ** 2 for p in parameters) ** 0.5
        look = _Comparison(parameters, share, length, norm_of(off, parameters))
        if look.mismatch(v, eps, total) is not None:
            suspects.append((parameters, share))
    return suspects


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


def _in_batch(
    batch: Sequence[Component],
    ledger: Ledger,
    v: Tensor,
    ordinary: Ordinary,
    eps: float,
) -> list[Mismatch] | None:
    together = [p for parameters, _ in batch for p in parameters]
    once = ordinary(v, together)
    off = _off({p: g.clone() for p, g in once.items() if p not in ledger.unkept}, ledger, v)
    looks = [
        _Comparison(parameters, share, norm_of(once, parameters), norm_of(off, parameters))
        for parameters, share in batch
    ]
    del off
    if not all(isfinite(look.ordinary) for look in looks):
        return None
    suspects, total = looks, length_of(ledger.G, v)
    found: list[Mismatch] = []
    for _ in range(_SAMPLES):
        chosen = [p for look in suspects for p in look.parameters]
        part = v * (torch.rand(len(v), generator=_RANDOM) < 0.5).to(v)
        first, second = ordinary(part, chosen), ordinary(v - part, chosen)
        for look in suspects:
            apart = {p: first[p] + second[p] - once[p] for p in look.parameters if p in once}
            look.noise = max(look.noise, norm_of(apart, look.parameters))
        judged = [(look, look.mismatch(v, eps, total)) for look in suspects]
        suspects = [look for look, wrong in judged if wrong is not None]
        found = [wrong for _, wrong in judged if wrong is not None]
        if not suspects:
            break
    return found


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


def _batches(
    components: Sequence[Component], sizes: Mapping[int, int]
) -> Iterator[list[Component]]:
    """At most five batches, whose parameters are about a quarter of all."""
    limit = sum(sizes[p] for parameters, _ in components for p in parameters) / 4
    batch: list[Component] = []
    size = 0
    for parameters, share in components:
        batch.append((parameters, share))
        size += sum(sizes[p] for p in parameters)
        if size >= limit:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


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

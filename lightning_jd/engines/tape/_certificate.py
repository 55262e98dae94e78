r"""Compares a Gramian with an ordinary backward pass.

For any v, :math:`v^\top G v = \lVert J^\top v \rVert^2`, and the same for the share of each
parameter. A wrong Gramian passes for a random v with probability zero. :math:`J^\top v` is taken
from autograd on the parameters themselves, never from the tape; the gradients that the tape gives
for the weights v are compared with it as well.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_jd.engines.tape._ledger import Ledger
from lightning_jd.errors import GraphError

#: Relative error that is rounding, by the least precise type that takes part.
TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 2e-4,
    torch.float16: 3e-2,
    torch.bfloat16: 1e-1,
}


#: How many times the rounding error that autograd itself shows is still rounding.
_NOISE = 50.0
#: Distances of so many times the machine precision, relative to the whole gradient, are rounding.
_FLOOR = 200.0

#: The user's random numbers (dropout, shuffling) must not depend on whether a step is certified.
_RANDOM = torch.Generator().manual_seed(0)


@dataclass(frozen=True)
class Mismatch:
    """Parameters whose share of the Gramian, or whose gradient, is wrong.

    Attributes:
        parameters: Their positions; several if they are only known together.
        what: ``"Gramian"`` or ``"gradient"``.
        error: The relative error.
        distance: How far the norm of the gradient, or the gradient itself, is off.
    """

    parameters: tuple[int, ...]
    what: str
    error: float
    distance: float


def random_vector(G: Tensor, spread: float) -> Tensor:
    """Random signs and sizes that let every objective weigh about the same.

    Args:
        G: The Gramian, shape (m, m).
        spread: The largest ratio of two weights that is allowed for the sake of balance.
    """
    norms = G.diagonal().clamp(min=0).sqrt()
    floor = norms.max().clamp(min=torch.finfo(G.dtype).tiny) / spread
    random = torch.rand(2, len(G), generator=_RANDOM).to(G)
    sizes, signs = random[0] + 0.5, torch.where(random[1] < 0.5, -1.0, 1.0)
    return sizes * signs * norms.max() / torch.maximum(norms, floor)


def mismatches(
    ledger: Ledger,
    v: Tensor,
    ordinary_gradients: Callable[[Sequence[int]], dict[int, Tensor]],
    sizes: Mapping[int, int],
    tolerance: float,
) -> list[Mismatch]:
    """Compare shares and gradients, a part of the parameters at a time to save memory.

    Args:
        ledger: A ledger that noted the share of each contribution.
        v: The vector.
        ordinary_gradients: ``Jᵀ v`` of some parameters, from autograd.
        sizes: The number of entries of each parameter.
        tolerance: See :data:`TOLERANCE`.
    """
    found: list[Mismatch] = []
    # A gradient that is zero in theory is noise of the size that rounding has in all of them.
    lengths = ledger.G.diagonal().clamp(min=0).sqrt()
    floor = _FLOOR * torch.finfo(ledger.G.dtype).eps * float(v.to(lengths).abs() @ lengths)
    for batch in _batches(_by_component(ledger.shares), sizes):
        together = [p for parameters, _ in batch for p in parameters]
        expected = ordinary_gradients(together)
        norms = {p: float(gradient.norm(dtype=ledger.G.dtype)) for p, gradient in expected.items()}
        for parameter, part in ledger.parts_of_gradients(v, only=set(together)):
            gradient = expected[parameter].flatten()
            expected[parameter] = gradient.sub_(part.to(gradient.dtype))
        replayed = expected.keys() - ledger.unkept
        for parameters, share in batch:
            norm = sum(norms.get(p, 0.0) ** 2 for p in parameters) ** 0.5
            off = max((float(expected[p].norm()) for p in parameters if p in replayed), default=0)
            found += _compare(parameters, share, v.to(share), norm, off, tolerance)
    return [mismatch for mismatch in found if not mismatch.distance <= floor]


def _compare(
    parameters: tuple[int, ...],
    share: Tensor,
    v: Tensor,
    norm: float,
    distance: float,
    tolerance: float,
) -> list[Mismatch]:
    reach = float(v.abs() @ share.diagonal().clamp(min=0).sqrt()) or 1.0  # bounds both norms
    claimed = max(0.0, float(v @ share @ v)) ** 0.5
    error = abs(claimed**2 - norm**2) / reach**2
    if not error <= tolerance:
        return [Mismatch(parameters, "Gramian", error, abs(claimed - norm))]
    if not distance <= tolerance * reach:
        return [Mismatch(parameters, "gradient", distance / reach, distance)]
    return []


def _batches(
    components: Sequence[tuple[tuple[int, ...], Tensor]], sizes: Mapping[int, int]
) -> Iterator[list[tuple[tuple[int, ...], Tensor]]]:
    """At most five batches, whose parameters are about a quarter of all."""
    limit = sum(sizes[p] for parameters, _ in components for p in parameters) / 4
    batch: list[tuple[tuple[int, ...], Tensor]] = []
    size = 0
    for parameters, share in components:
        batch.append((parameters, share))
        size += sum(sizes[p] for p in parameters)
        if size >= limit:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def beyond_noise(
    found: Sequence[Mismatch], first: Mapping[int, Tensor], second: Mapping[int, Tensor]
) -> list[Mismatch]:
    """Drop mismatches of gradients that are nothing but rounding errors.

    The bias of a convolution before a normalisation has the gradient zero; what is computed instead
    is noise, by the tape as by autograd. How large it is shows in two passes of autograd that give
    the same result in exact arithmetic.

    Args:
        found: The mismatches.
        first: Gradients of a pass.
        second: Those of the other pass.
    """
    real = []
    for mismatch in found:
        noise = [float((first[p] - second[p]).norm()) for p in mismatch.parameters if p in first]
        if not mismatch.distance <= _NOISE * sum(noise):
            real.append(mismatch)
    return real


def _by_component(
    shares: Sequence[tuple[tuple[int, ...], Tensor]],
) -> list[tuple[tuple[int, ...], Tensor]]:
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


def complain(wrong: Sequence[Mismatch], names: Sequence[str], *, raises: bool) -> None:
    """Name the parameters that are wrong, in a warning or an error.

    Raises:
        GraphError: If that is asked for.
    """
    listed = ", ".join(
        f"{' and '.join(repr(names[p]) for p in found.parameters)} "
        f"({found.what}, relative error {found.error:.1e})"
        for found in wrong
    )
    must = "The Gramian must agree with an ordinary backward pass, got a mismatch for "
    if raises:
        raise GraphError(f"{must}{listed}. Pass `check='auto'` to deal with them row by row.")
    warnings.warn(
        f"{must}{listed}. These parameters are dealt with row by row from now on, which is "
        "exact but slower. Please report the model.",
        RuntimeWarning,
        stacklevel=5,
    )

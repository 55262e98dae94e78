"""Finds owners by experiment, where they could not be proven.

Multiplying by a power of two is exact in every binary type and commutes with every rounding of a
linear pass. So a slice that belongs to one loss comes back from a pass in which that loss was
multiplied by a power of two as the same bits with another exponent, its rounding errors included.
The number of each loss is written in some base, one digit a pass, as such an exponent: a pass
without codes and a few coded ones name the owner of every slice. A slice that is no exact multiple
is mixed.

A pass goes through one operation, whose outputs have known owners, with numbers in general
position; or from the losses down to the place in question. What is tested belongs to this very
step, so that nothing has to be assumed about the next one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from lightning_jd.engines.tape.graph import (
    Edge,
    Graph,
    Ids,
    Shape,
    any_hooked,
    gradients_of,
    local_vjp,
    types_in,
)
from lightning_jd.engines.tape.owners._owners import NOBODY, Owners

#: The user's random numbers (dropout, shuffling) must not depend on what is probed.
_random = np.random.default_rng(0)


@dataclass(frozen=True)
class _Alphabet:
    """Exponents that a type has room for, and what rounding does to them.

    Attributes:
        base: How many exponents there are; zero is left out.
        lowest: The smallest.
        floor: Differences up to here are the loss of bits below the smallest normal number.
        quiet: A slice of which no entry is larger counts as zero: a few such bits are all it has,
            or its square vanishes in a Gramian of this type.
        blur: Relative differences within a slice that lost bits further up in the pass leave.
    """

    base: int
    lowest: int
    floor: float
    quiet: float
    blur: float


_DOUBLE = _Alphabet(512, -256, 2.0**-1000, 2.0**-700, 0.0)
_SINGLE = _Alphabet(64, -32, 2.0**-116, 2.0**-80, 0.0)
#: Its smallest normal number is 6e-5, so that most passes meet smaller ones.
_HALF = _Alphabet(8, 0, 2.0**-22, 2.0**-21, 2.0**-4)
#: Entries of a slice that are looked at first.
_SAMPLE = 32
#: Kernels that add in an order of their own leave a few units in the last place.
_UNORDERED = 4.0


class Probe:
    """Experiments that show who owns the slices of some gradients.

    Args:
        graph: The graph.
        losses: Shape (b,) or (b, k); the owners are the b instances.
        scale: What the losses are multiplied by before they are differentiated.
    """

    def __init__(self, graph: Graph, losses: Tensor, scale: float | Tensor) -> None:
        self._graph, self._losses, self._scale = graph, losses, scale

    @cached_property
    def _code(self) -> _Code:
        types = types_in(self._graph)
        rounding = 0.0
        if self._losses.device.type != "cpu":
            rounding = _UNORDERED * max(torch.finfo(dtype).eps for dtype in types)
        return _Code(len(self._losses), _alphabet(types), rounding)

    def below(
        self, node: int, owners: Sequence[Owners | None], shapes: Sequence[Shape | None]
    ) -> list[Owners | None] | None:
        """The owners of the inputs of one operation, which is differentiated alone.

        Args:
            node: The operation.
            owners: The owners of its outputs.
            shapes: The shapes of its inputs; ``None`` for those that do not matter.

        Returns:
            One entry per input, ``None`` where slices are mixed; or ``None`` if the operation
            cannot be differentiated alone.
        """
        described = self._graph.nodes[node]
        if any_hooked(described):
            return None  # saved tensors that are recomputed are given out once per pass
        passes = [
            local_vjp(described, _cotangents(described, owners, exponents))
            for exponents in self._code.exponents
        ]
        return [
            None if shape is None else self._code.owners(*[_fitted(g, shape) for g in gradients])
            for shape, *gradients in zip(shapes, *passes, strict=True)
        ]

    def at(self, edges: Sequence[Edge]) -> list[Owners | None]:
        """The owners of the gradients at some edges; ``None`` where slices are mixed."""
        weights = torch.ones_like(self._losses) * self._scale
        if self._losses.ndim == 2:
            # losses of one instance might cancel each other: weigh them at random
            numbers = _random.uniform(0.5, 1.5, self._losses.shape[1])
            weights = weights * torch.as_tensor(numbers, dtype=weights.dtype, device=weights.device)
        targets = [GradientEdge(self._graph.nodes[node], output) for node, output in edges]
        passes = []
        for exponents in self._code.exponents:
            factors = torch.as_tensor(2.0**exponents, dtype=weights.dtype, device=weights.device)
            coded = weights * (factors if weights.ndim == 1 else factors.unsqueeze(1))
            passes.append(gradients_of([self._losses], [coded], targets))
        return [self._code.owners(*gradients) for gradients in zip(*passes, strict=True)]


def _cotangents(
    node: Node, owners: Sequence[Owners | None], exponents: npt.NDArray[Any]
) -> list[Tensor | None]:
    """Numbers in general position, those of each owner times its power of two."""
    found: list[Tensor | None] = []
    for who, described in zip(owners, node._input_metadata, strict=True):
        if who is None:
            found.append(None)
            continue
        shape = tuple(described.shape)
        factors = np.where(who.ids == NOBODY, 0.0, 2.0 ** exponents[who.ids])
        coded = torch.as_tensor(factors, dtype=described.dtype, device=described.device)
        cotangent = coded.view([-1 if axis == who.axis else 1 for axis in range(len(shape))])
        for axis, size in enumerate(shape):
            numbers = _in_general_position(size, axis, described.dtype, described.device)
            cotangent = cotangent * numbers.view([size, *[1] * (len(shape) - axis - 1)])
        found.append(cotangent)
    return found


@lru_cache(maxsize=256)
def _in_general_position(size: int, axis: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    numbers = np.random.default_rng(axis).uniform(0.5, 1.5, size)
    return torch.as_tensor(numbers, dtype=dtype, device=device)


def _fitted(gradient: Tensor | None, shape: Shape) -> Tensor | None:
    """Autograd sums gradients to the shape of the input only after the operation."""
    if gradient is None:
        return None
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    return dense if dense.is_nested or dense.shape == shape else dense.sum_to_size(shape)


class _Code:
    """A number for each loss, in digits that are exponents of two.

    Args:
        m: The number of losses.
        alphabet: The exponents.
        rounding: Relative differences between two passes that may be rounding.
    """

    def __init__(self, m: int, alphabet: _Alphabet, rounding: float) -> None:
        self._alphabet, self._rounding = alphabet, max(alphabet.blur, rounding)
        # A random order: of two losses that mix, the smaller one is not always the smaller number.
        self._numbers = _random.permutation(m)
        self._loss_of = np.argsort(self._numbers)
        digits = 1
        while alphabet.base**digits < m:
            digits += 1
        #: Of all losses, pass by pass: the first one is without codes.
        self.exponents: list[Ids] = [np.zeros(m, dtype=np.int64)]
        for digit in range(digits):
            exponents = self._numbers // alphabet.base**digit % alphabet.base + alphabet.lowest
            # Zero is none of them: what does not depend on the scale at all (a sign) has no owner.
            self.exponents.append(exponents + (exponents >= 0))

    def owners(self, plain: Tensor | None, *coded: Tensor | None) -> Owners | None:
        """Whoever owns the slices of a tensor, along the first axis that tells them apart.

        Args:
            plain: Its gradient in the pass with ones; ``None`` if there is none.
            coded: Its gradients in the coded passes.
        """
        if plain is None:
            return Owners(None, np.array([NOBODY]))
        if plain.is_nested:
            return None
        axes = range(plain.ndim)
        if plain.is_complex():
            plain = torch.view_as_real(plain.resolve_conj())
            coded = tuple(
                [None if x is None else torch.view_as_real(x.resolve_conj()) for x in coded]
            )
        exact = torch.float64 if plain.dtype == torch.float64 else torch.float32
        plain = plain.to(exact)
        several = [torch.zeros_like(plain) if x is None else x.to(exact) for x in coded]
        for axis in axes:
            ids = self._along(axis, plain, several)
            if ids is not None:
                return Owners(axis, ids)
        return None

    def _along(self, axis: int, plain: Tensor, coded: Sequence[Tensor]) -> Ids | None:
        lines = [x.movedim(axis, 0).unsqueeze(1).flatten(1) for x in (plain, *coded)]
        length = lines[0].shape[1]
        if length == 0:
            return np.full(len(lines[0]), NOBODY)
        if length > 4 * _SAMPLE:  # most axes are wrong: a part of the entries shows it
            some = [line[:, :: length // _SAMPLE] for line in lines]
            if self._losses_of(*some) is None:
                return None
        return self._losses_of(*lines)

    def _losses_of(self, lines: Tensor, *coded: Tensor) -> Ids | None:
        """The loss that each line belongs to; ``None`` if some are mixed."""
        alphabet = self._alphabet
        sizes = lines.abs()  # norms along an axis are slow
        largest, length = sizes.amax(dim=1), sizes.sum(dim=1)
        quiet = largest <= alphabet.quiet
        length = length.where(~quiet, 1)
        loud = alphabet.quiet * 2.0 ** (alphabet.lowest + alphabet.base)
        fine = torch.isfinite(largest)
        number = torch.zeros(len(lines), dtype=torch.int64, device=lines.device)
        for digit, others in enumerate(coded):
            ratio = torch.abs(others, out=sizes).sum(dim=1) / length
            exponent = torch.log2(ratio.clamp(min=2.0**-300)).round().where(~quiet, 0)
            power = torch.exp2(exponent)
            torch.addcmul(others, lines, power.unsqueeze(1), value=-1, out=sizes)
            off = sizes.abs_().amax(dim=1)
            allowed = self._rounding * largest * power + alphabet.floor * power.clamp(min=1)
            place = exponent.long() - alphabet.lowest - (exponent > 0).long()
            is_digit = (place >= 0) & (place < alphabet.base) & (exponent != 0)
            # two losses that cancel are quiet in the pass without codes only
            fine &= torch.where(quiet, off <= loud, (off <= allowed) & is_digit)
            number += place.clamp(0, alphabet.base - 1) * alphabet.base**digit
        fine &= quiet | (number < len(self._loss_of))
        if not bool(fine.all()):
            return None
        losses = self._loss_of[number.where(~quiet, 0).cpu().numpy()]
        return np.where(quiet.cpu().numpy(), NOBODY, losses)


def _alphabet(types: Collection[torch.dtype]) -> _Alphabet:
    if torch.float16 in types:
        return _HALF
    return _DOUBLE if set(types) <= {torch.float64} else _SINGLE

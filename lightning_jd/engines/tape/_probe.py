"""Finds owners by experiment, where they could not be proven.

Multiplying by a power of two is exact in every binary type and commutes with every rounding of a
linear pass. So a slice that belongs to one loss comes back from a pass in which that loss was
multiplied by a power of two as the same bits with another exponent, its rounding errors included.
The number of each loss is written in some base, one digit a pass, as such an exponent: the pass
with ones and a few coded passes name the owner of every slice. A slice that is no exact multiple is
mixed.

What is tested are the gradients of this very step, so that nothing has to be assumed about the next
one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from lightning_jd.engines.tape._differentiate import gradients_of
from lightning_jd.engines.tape._graph import Edge, Graph, types_in
from lightning_jd.engines.tape._owners import NOBODY, Ids, Owners

#: The user's random numbers (dropout, shuffling) must not depend on what is probed.
_random = np.random.default_rng(0)


@dataclass(frozen=True)
class _Alphabet:
    """Exponents that a type has room for, and what rounding does to them.

    Attributes:
        base: How many exponents there are.
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
#: Kernels that add in an order of their own leave a few units in the last place.
_UNORDERED = 4.0


class Probe:
    """Passes over a graph that show who owns the slices of some gradients.

    Args:
        graph: The graph.
        losses: Shape (b,) or (b, k); the owners are the b instances.
        scale: What the losses are multiplied by before they are differentiated.
    """

    def __init__(self, graph: Graph, losses: Tensor, scale: float | Tensor) -> None:
        self._graph, self._losses, self._scale = graph, losses, scale
        self._found: dict[Edge, Owners | None] = {}

    def owners(self, edges: Collection[Edge]) -> dict[Edge, Owners | None]:
        """The owners of the gradients at some edges; ``None`` where slices are mixed."""
        new = sorted(set(edges) - self._found.keys())
        if new:
            self._found.update(zip(new, self._look(new), strict=True))
        return {edge: self._found[edge] for edge in edges}

    def _look(self, edges: Sequence[Edge]) -> list[Owners | None]:
        types = types_in(self._graph)
        code = _Code(len(self._losses), _alphabet(types))
        unordered = 0.0
        if self._losses.device.type != "cpu":
            unordered = _UNORDERED * max(torch.finfo(dtype).eps for dtype in types)
        weights = torch.ones_like(self._losses) * self._scale
        if self._losses.ndim == 2:
            # losses of one instance might cancel each other: weigh them at random
            numbers = _random.uniform(0.5, 1.5, self._losses.shape[1])
            weights = weights * torch.as_tensor(numbers, dtype=weights.dtype, device=weights.device)
        passes = [self._pass(weights, edges)]
        for exponents in code.exponents:
            factors = torch.as_tensor(2.0**exponents, dtype=weights.dtype, device=weights.device)
            coded = weights * (factors if weights.ndim == 1 else factors.unsqueeze(1))
            passes.append(self._pass(coded, edges))
        return [code.owners(plain, coded, unordered) for plain, *coded in zip(*passes, strict=True)]

    def _pass(self, weights: Tensor, edges: Sequence[Edge]) -> Sequence[Tensor | None]:
        targets = [GradientEdge(self._graph.nodes[node], output) for node, output in edges]
        return gradients_of([self._losses], [weights], targets)


class _Code:
    """A number for each loss, in digits that are exponents of two.

    Args:
        m: The number of losses.
        alphabet: The exponents.
    """

    def __init__(self, m: int, alphabet: _Alphabet) -> None:
        self._alphabet = alphabet
        # A random order: of two losses that mix, the smaller one is not always the smaller number.
        self._numbers = _random.permutation(m)
        self._loss_of = np.argsort(self._numbers)
        digits = 1
        while alphabet.base**digits < m:
            digits += 1
        self.exponents: list[Ids] = [
            self._numbers // alphabet.base**digit % alphabet.base + alphabet.lowest
            for digit in range(digits)
        ]

    def owners(
        self, plain: Tensor | None, coded: Sequence[Tensor | None], unordered: float
    ) -> Owners | None:
        """Whoever owns the slices of a tensor, along the first axis that tells them apart.

        Args:
            plain: Its gradient in the pass with ones; ``None`` if there is none.
            coded: Its gradients in the coded passes.
            unordered: Relative differences between passes that may be rounding.
        """
        if plain is None:
            return Owners(None, np.array([NOBODY]))
        if plain.is_nested:
            return None
        axes = range(plain.ndim)
        if plain.is_complex():
            plain, coded = (
                torch.view_as_real(plain),
                [None if x is None else torch.view_as_real(x.resolve_conj()) for x in coded],
            )
        exact = torch.float64 if plain.dtype == torch.float64 else torch.float32
        plain = plain.to(exact)
        several = [torch.zeros_like(plain) if x is None else x.to(exact) for x in coded]
        for axis in axes:
            ids = self._along(axis, plain, several, unordered)
            if ids is not None:
                return Owners(axis, ids)
        return None

    def _along(
        self, axis: int, plain: Tensor, coded: Sequence[Tensor], unordered: float
    ) -> Ids | None:
        alphabet = self._alphabet
        lines = plain.movedim(axis, 0).reshape(plain.shape[axis], -1)
        if lines.shape[1] == 0:
            return np.full(len(lines), NOBODY)
        largest, where = lines.abs().max(dim=1)
        where = where.unsqueeze(1)
        signs = lines.gather(1, where).sign()
        quiet = largest <= alphabet.quiet
        loud = alphabet.quiet * 2.0 ** (alphabet.lowest + alphabet.base)
        fine = torch.isfinite(largest)
        number = torch.zeros_like(where).squeeze(1)
        for digit, other in enumerate(coded):
            others = other.movedim(axis, 0).reshape(lines.shape)
            ratio = (others.gather(1, where) * signs).squeeze(1) / largest.where(~quiet, 1)
            exponent = torch.log2(ratio.clamp(min=2.0**-300)).round().where(~quiet, 0)
            power = torch.exp2(exponent)
            off = (others - lines * power.unsqueeze(1)).abs().amax(dim=1)
            rounding = max(alphabet.blur, unordered) * largest * power
            allowed = rounding + alphabet.floor * power.clamp(min=1)
            place = exponent.long() - alphabet.lowest
            is_digit = (place >= 0) & (place < alphabet.base)
            # two losses that cancel are quiet in the pass with ones only
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

"""Finds owners by experiment, where they could not be proven.

Multiplying by a power of two is exact in every binary type and commutes with every rounding of a
linear operation. So a slice that belongs to one loss comes back from an operation at which that
loss was multiplied by a power of two as the same bits with another exponent, its rounding errors
included. The number of each loss is written in some base, one digit a pass, as such an exponent: a
pass without codes and a few coded ones name the owner of every slice. A slice that is no exact
multiple is mixed.

The operation is differentiated alone, in single precision or better, with random cotangents: in
half precision, and with cotangents of rank one, mixtures may pass for multiples. What is tested
belongs to this very step, so that nothing has to be assumed about the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import Node

from lightning_jd.engines.tape.graph import Graph, Ids, Shape, any_hooked, local_vjp
from lightning_jd.engines.tape.owners._owners import NOBODY, Owners

#: The user's random numbers (dropout, shuffling) must not depend on what is probed.
_random, _random_numbers = np.random.default_rng(0), torch.Generator().manual_seed(0)


@dataclass(frozen=True)
class _Alphabet:
    """Exponents that a type has room for.

    Attributes:
        base: How many exponents there are; zero is left out.
        lowest: The smallest.
        smallest: A slice without a larger entry may lose bits in a coded pass.
        lost: The bits that smaller entries may lose.
    """

    base: int
    lowest: int
    smallest: float
    lost: float


_DOUBLE = _Alphabet(512, -256, 2.0**-700, 2.0**-1060)
_SINGLE = _Alphabet(64, -32, 2.0**-90, 2.0**-140)
#: Entries of a slice that are looked at first.
_SAMPLE = 32
#: Kernels that add in an order of their own leave a few units in the last place.
_UNORDERED = 4.0


class Probe:
    """Experiments that show who owns the slices of some gradients."""

    def __init__(self, graph: Graph, m: int) -> None:
        self._graph, self._m = graph, m

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
            cannot be differentiated alone, or not in single precision.
        """
        described = self._graph.nodes[node]
        if any_hooked(described):
            return None  # saved tensors that are recomputed are given out once per pass
        results = described._input_metadata
        used = [each for each, who in zip(results, owners, strict=True) if who is not None]
        is_half = any(each.dtype.to_real().itemsize < _WIDE for each in used)
        is_double = all(each.dtype.to_real() == torch.float64 for each in used)
        code = _Code(
            self._m,
            _DOUBLE if is_double else _SINGLE,
            0.0 if used[0].device.type == "cpu" else _UNORDERED * torch.finfo(torch.float32).eps,
        )
        plain = _cotangents(described, owners)
        try:
            passes = [
                local_vjp(described, _coded(plain, owners, exponents))
                for exponents in code.exponents
            ]
        except Exception:
            if is_half:  # the operation takes no other type than its own
                return None
            raise
        return [
            None if shape is None else code.owners(*[_fitted(g, shape) for g in gradients])
            for shape, *gradients in zip(shapes, *passes, strict=True)
        ]


#: The bytes of a number of single precision.
_WIDE = 4


def _cotangents(node: Node, owners: Sequence[Owners | None]) -> list[Tensor | None]:
    """Random numbers, in single precision or better."""
    found: list[Tensor | None] = []
    for who, described in zip(owners, node._input_metadata, strict=True):
        if who is None:
            found.append(None)
            continue
        dtype = described.dtype
        if dtype.to_real().itemsize < _WIDE:
            dtype = torch.complex64 if dtype.is_complex else torch.float32
        numbers = torch.rand(tuple(described.shape), generator=_random_numbers, dtype=dtype)
        found.append((numbers + 0.5).to(described.device))
    return found


def _coded(
    cotangents: Sequence[Tensor | None], owners: Sequence[Owners | None], exponents: Ids
) -> list[Tensor | None]:
    """Cotangents, those of each owner times its power of two."""
    found: list[Tensor | None] = []
    for cotangent, who in zip(cotangents, owners, strict=True):
        if cotangent is None or who is None:
            found.append(None)
            continue
        factors = np.where(who.ids == NOBODY, 0.0, 2.0 ** exponents[who.ids])
        coded = torch.as_tensor(factors).to(cotangent.dtype).to(cotangent.device)
        shape = [-1 if axis == who.axis else 1 for axis in range(cotangent.ndim)]
        found.append(cotangent * coded.view(shape))
    return found


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
        self._alphabet, self._rounding = alphabet, rounding
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
        """The owners of the slices of a tensor, along the first axis that separates them.

        Args:
            plain: Its gradient in the pass with ones; ``None`` if there is none.
            coded: Its gradients in the coded passes.
        """
        if plain is None:
            return Owners(None, np.array([NOBODY]))
        if plain.is_nested or plain.dtype.to_real().itemsize < _WIDE:
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
        zero = largest == 0
        length = length.where(~zero, 1)
        fine = torch.isfinite(largest) & (zero | (largest >= alphabet.smallest))
        number = torch.zeros(len(lines), dtype=torch.int64, device=lines.device)
        for digit, others in enumerate(coded):
            ratio = torch.abs(others, out=sizes).sum(dim=1) / length
            exponent = torch.log2(ratio.clamp(min=2.0**-300)).round().where(~zero, 0)
            power = torch.exp2(exponent)
            torch.addcmul(others, lines, power.unsqueeze(1), value=-1, out=sizes)
            off = sizes.abs_().amax(dim=1)
            allowed = self._rounding * largest * power + alphabet.lost * power.clamp(min=1)
            place = exponent.long() - alphabet.lowest - (exponent > 0).long()
            is_digit = (place >= 0) & (place < alphabet.base) & (exponent != 0)
            # two losses that cancel are zero in the pass without codes only
            fine &= torch.where(zero, off == 0, (off <= allowed) & is_digit)
            number += place.clamp(0, alphabet.base - 1) * alphabet.base**digit
        fine &= zero | (number < len(self._loss_of))
        if not bool(fine.all()):
            return None
        losses = self._loss_of[number.where(~zero, 0).cpu().numpy()]
        return np.where(zero.cpu().numpy(), NOBODY, losses)

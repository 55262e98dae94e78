"""A random projection of rows, which is computed column by column and never held."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from math import gcd

import torch
from torch import Tensor

_WORD = (1 << 32) - 1
#: Nonzero numbers per row of R, where they divide the dimensions.
_NONZERO = 4


class Projection:
    r"""The rows of a sparse random matrix :math:`R` that belong to the columns of one parameter.

    Each column of the Jacobian is added, with a random sign, to one of the dimensions in each of s
    ranges of equal length, times :math:`1 / \sqrt s`. Signs and dimensions are a hash of the seed,
    the name of the parameter and the number of the column, in integer arithmetic, so that they are
    the same on all devices and processes. Inner products are preserved in the mean, with variance
    at most :math:`(\lVert g \rVert^2 \lVert h \rVert^2 + \langle g, h \rangle^2) / \text{dim}`.

    Args:
        dim: The number of dimensions.
        seed: Another seed is another R.
        name: The name of the parameter.

    References:
        Kane and Nelson, *Sparser Johnson-Lindenstrauss Transforms*, J. ACM 2014.
    """

    def __init__(self, dim: int, seed: int, name: str) -> None:
        self.dim, self._number = dim, gcd(dim, _NONZERO)
        digest = sha256(f"{seed}/{name}".encode()).digest()
        self._keys = [
            tuple(int.from_bytes(digest[at : at + 4], "little") for at in (8 * k, 8 * k + 4))
            for k in range(self._number)
        ]

    def of(self, blocks: Iterable[Tensor]) -> Tensor:
        """The projection of rows that come some columns at a time, shape (m, dim)."""
        begin = 0
        total: Tensor | None = None
        for block in blocks:
            m, n = block.shape
            total = block.new_zeros(m, self.dim) if total is None else total
            columns = torch.arange(begin, begin + n, device=block.device)
            for k in range(self._number):
                place, sign = self._hashed(columns, k)
                total.index_add_(1, place, block * sign.to(block))
            begin += n
        assert total is not None
        return total.div_(self._number**0.5)

    def _hashed(self, columns: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The dimension in the k-th range, and the sign, of each column."""
        first, second = self._keys[k]
        word = _mixed(_mixed((columns & _WORD) ^ first) + (columns >> 32) + second & _WORD)
        length = self.dim // self._number
        return k * length + (word >> 1) % length, 2 * (word & 1) - 1


def _mixed(word: Tensor) -> Tensor:
    """A bijection of 32 bits that looks random; products stay below 63 bits."""
    for _ in range(2):
        word = ((word >> 16) ^ word) * 0x45D9F3B & _WORD
    return (word >> 16) ^ word

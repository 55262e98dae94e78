"""Inner products of momentum and gradient: as few passes over memory as the answer needs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors

from lightning_jd.linalg import has_float64
from lightning_jd.optim._two_rows import Products

_BLOCK = 1 << 17  # entries: a block of both rows stays in the cache of a CPU
_SMALL = 1 << 14  # entries of a tensor that is put together with others

Rows = tuple[list[Tensor], list[Tensor]]
"""Two rows, tensor by tensor of the same strides; the first may be empty, which is zeros."""


def inner_products(pairs: Sequence[Rows], *, only_conflict: bool = False) -> list[Products]:
    """The inner products of pairs of rows; the host waits once.

    Args:
        pairs: The rows of each pair are of one type, on one device.
        only_conflict: Whether rows that do not oppose each other are all alike to the caller. On a
            CPU, where the host knows at once, their squared norms are then not measured; zeros
            stand for them.

    Example:
        >>> rows = [torch.tensor([1.0, 2.0])], [torch.tensor([3.0, 4.0])]
        >>> inner_products([rows]), inner_products([rows], only_conflict=True)
        ([Products(aa=5.0, ab=11.0, bb=25.0)], [Products(aa=0.0, ab=11.0, bb=0.0)])
    """
    rows = [
        list(zip(_vectors(a or [torch.zeros_like(y) for y in b]), _vectors(b), strict=True))
        for a, b in pairs
    ]
    if only_conflict and all(b[0].device.type == "cpu" for _, b in pairs):
        mixed = _to_host([_summed([torch.dot(x, y) for x, y in each], 1) for each in rows])
        if all(ab >= 0 for (ab,) in mixed):
            return [Products(0.0, ab, 0.0) for (ab,) in mixed]
    every = [
        [torch.dot(*pair) for x, y in each for pair in ((x, x), (x, y), (y, y))] for each in rows
    ]
    return [Products(*three) for three in _to_host([_summed(parts, 3) for parts in every])]


def _vectors(row: list[Tensor]) -> list[Tensor]:
    """The same entries in vectors that are neither very small nor larger than a cache."""
    large = [each for each in row if each.numel() > _SMALL]
    vectors = [each.as_strided((each.numel(),), (1,)) for each in large]  # in the order of memory
    if len(large) < len(row):  # what would cost more to start with than to compute goes together
        vectors.append(_flatten_dense_tensors([each for each in row if each.numel() <= _SMALL]))
    if row[0].device.type == "cpu":
        vectors = [block for vector in vectors for block in vector.split(_BLOCK)]
    return [each.float() for each in vectors] if row[0].dtype.itemsize < 4 else vectors


def _summed(parts: list[Tensor], kinds: int) -> Tensor:
    """The sums of every so-manieth number."""
    stacked = torch.stack(parts).view(-1, kinds)
    return (stacked.double() if has_float64(stacked.device) else stacked).sum(0)


def _to_host(totals: list[Tensor]) -> list[list[float]]:
    found: list[list[float]] = []
    if totals:
        found = torch.stack([total.to(totals[0].device) for total in totals]).tolist()
    return found

"""Two rows, momentum and gradient: their inner products, and the weights that follow from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors

from lightning_jd.aggregators import GramianAggregator, Mean, Step, Sum, UPGrad
from lightning_jd.linalg import has_float64

#: Of no kind: `reg` is relative to the trace.
_STEP = Step(("momentum", "gradient"), kind="")


class Products(NamedTuple):
    """Inner products of two rows: a with a, a with b, b with b."""

    aa: float
    ab: float
    bb: float

    def scaled(self, a: float, b: float) -> Products:
        """Those of the rows times a factor each."""
        return Products(a * a * self.aa, a * b * self.ab, b * b * self.bb)

    def mixed(self, of_a: float, of_b: float) -> Products:
        """Those of the rows ``of_a * a + of_b * b`` and b."""
        squared = of_a**2 * self.aa + 2 * of_a * of_b * self.ab + of_b**2 * self.bb
        return Products(max(squared, 0.0), of_a * self.ab + of_b * self.bb, self.bb)

    def plus(self, other: Products) -> Products:
        """Those of rows that go on with other rows."""
        return Products(self.aa + other.aa, self.ab + other.ab, self.bb + other.bb)


class TwoRows:
    """The weights of an aggregator for two rows, scaled so that orthogonal rows are added.

    An aggregator that averages gives half of what one gives that adds. Here both stand for the sum
    that an ordinary optimizer takes: weights are multiplied by the number that makes the weights of
    two orthogonal rows of norm one add up to two.

    Args:
        aggregator: The method.

    Attributes:
        is_sum: Whether the weights are always one.
        only_conflict: Whether they are one unless the rows oppose each other.

    Example:
        >>> from lightning_jd.aggregators import MGDA
        >>> TwoRows(Mean())(Products(1.0, -0.5, 1.0)), TwoRows(Sum())(Products(1.0, -0.5, 1.0))
        ((1.0, 1.0), (1.0, 1.0))
        >>> TwoRows(UPGrad(reg=0))(Products(1.0, -0.5, 1.0))
        (1.5, 1.5)
    """

    def __init__(self, aggregator: GramianAggregator) -> None:
        self.aggregator = aggregator
        self.is_sum = type(aggregator) in (Mean, Sum)
        self._factor = 1.0
        plain = type(aggregator) is UPGrad and aggregator.preference is None
        self._closed: UPGrad | None = None
        if plain and isinstance(aggregator, UPGrad) and aggregator.relative_to != "row":
            self._closed = aggregator
        self.only_conflict = plain
        if not self.is_sum and self._closed is None:
            # Of a copy: a stream of random numbers, or a state, must not begin with this.
            state = aggregator.state_dict()
            total = float(aggregator.weigh(torch.eye(2, dtype=torch.float64), _STEP).sum())
            aggregator.reset()
            aggregator.load_state_dict(state)
            self._factor = 2 / total if total else 1.0

    def __call__(self, products: Products) -> tuple[float, float]:
        """The weights of the two rows."""
        if self.is_sum or products.aa <= 0 or products.bb <= 0:
            return 1.0, 1.0  # one row alone is taken as it is
        if not all(map(math.isfinite, products)):
            return 1.0, 1.0  # whoever looks for what is not finite will find it in the update
        if self._closed is not None:
            return _upgrad(products, self._closed.reg)
        aa, ab, bb = products
        G = torch.tensor([[aa, ab], [ab, bb]], dtype=torch.float64)
        a, b = self.aggregator.weigh(G, _STEP).tolist()
        return self._factor * a, self._factor * b


def _upgrad(products: Products, reg: float) -> tuple[float, float]:
    """The sum of the two projections: a closed form."""
    aa, ab, bb = products
    if ab >= 0:
        return 1.0, 1.0
    trace = aa + bb
    # H = G / tr(G) + reg I; the multiplier of one row in the projection of the other.
    return 1 - ab / (aa + reg * trace), 1 - ab / (bb + reg * trace)


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

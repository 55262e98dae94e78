"""How two rows, momentum and gradient, are combined: two weights from their inner products."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from lightning_jd.aggregators import GramianAggregator, Mean, Step, Sum, UPGrad

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

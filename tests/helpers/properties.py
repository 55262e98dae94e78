"""One check for each property that an aggregator may claim, up to rounding.

A check takes a function that makes the aggregator, always with the same random stream, and compares
successive draws one by one. Every tolerance is relative to the rows that were combined.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from examples.lab.arguments import example
from lightning_jd.aggregators import (
    CRMOGM,
    Aggregator,
    DualProj,
    FromFeatures,
    FromFunction,
    GramianAggregator,
    MConFIG,
    MoDo,
    Normalized,
    Primary,
    Property,
    SubJacobians,
    UPGrad,
    WeightsEvery,
)
from lightning_jd.aggregators._memory import Stateful
from tests.helpers.matrices import normal, size

Make = Callable[[], Aggregator]

TOLERANCE = 1e-8  # float64, and the square of the condition numbers of the shared set
DRAWS = 8


def of_definition(cls: type[Aggregator], m: int) -> Aggregator:
    """The aggregator as its paper defines it, for m objectives: without regularisation."""
    if issubclass(cls, UPGrad | DualProj | Primary):
        return cls(reg=0)
    if issubclass(cls, Normalized):  # what it claims holds for every length
        return cls(FromFunction(_by_position_and_norm), length="geometric")
    # Around a method that promises nothing.
    if issubclass(cls, CRMOGM | FromFeatures | SubJacobians | WeightsEvery):
        return cls(FromFunction(_by_position_and_norm))
    if issubclass(cls, MConFIG):  # so large that it does not make noise of where the update is zero
        return cls(eps=1e-3)
    if issubclass(cls, MoDo):  # so small that the longest rows of the set are not beyond it
        return cls(gamma=1e-16)
    return cls(**example(cls, m))


def _by_position_and_norm(gramian: Tensor) -> Tensor:
    norms = gramian.diagonal().sqrt()
    signs = torch.tensor([(-1.0) ** i * (i + 1) for i in range(len(gramian))]).to(norms)
    return signs * norms / norms.max() if bool(norms.any()) else norms


def holds(prop: Property, make: Make, J: Tensor) -> bool:
    return CHECKS[prop](make, J)


def worst_conflict(aggregator: Aggregator, J: Tensor) -> float:
    """The largest of -cos(g_i, d), where for d = 0 the length of the terms of d counts."""
    d = aggregator(J)
    length = d.norm()
    if isinstance(aggregator, GramianAggregator) and not aggregator.state_dict():
        weights = aggregator.weights(J @ J.T)
        length = (weights.abs() * J.norm(dim=1)).sum()
    cosines = (J @ d) / (J.norm(dim=1) * length)
    return float((-cosines).nan_to_num(nan=0.0).max())


def _sequence(aggregator: Aggregator, J: Tensor) -> list[Tensor]:
    """What to call it with: once, often if it is random, with other rows if it remembers."""
    if not aggregator.state_dict():
        return [J]
    if not isinstance(aggregator, Stateful):
        return [J] * DRAWS
    # Of other lengths, and turned among each other, in ways that belong to columns and steps.
    columns = torch.arange(J.shape[1], dtype=J.dtype)
    return [J * (1 + 0.9 * torch.sin((2 * t + 1) * (columns + t))) for t in range(DRAWS)]


def _outcomes(make: Make, J: Tensor) -> list[Tensor]:
    aggregator = make()
    return [aggregator(rows) for rows in _sequence(aggregator, J)]


def _is_non_conflicting(make: Make, J: Tensor) -> bool:
    aggregator = make()
    return all(worst_conflict(aggregator, rows) <= TOLERANCE for rows in _sequence(aggregator, J))


def _is_linear_under_scaling(make: Make, J: Tensor) -> bool:
    for seed in range(3):
        # On the positive orthant, additive and continuous is linear. Factors from 0.01 to 100.
        a, b = normal(seed, 2, len(J)).exp().square()[:, :, None]
        triples = zip(
            _outcomes(make, (a + b) * J),
            _outcomes(make, a * J),
            _outcomes(make, b * J),
            strict=True,
        )
        scale = TOLERANCE * size((a + b) * J)
        if any((both - (one + other)).norm() > scale for both, one, other in triples):
            return False
    return True


def _is_weighted(make: Make, J: Tensor) -> bool:
    sequence = _sequence(make(), J)
    return all(
        _distance_to_span(d, rows) <= TOLERANCE * d.norm().maximum(size(rows))
        for d, rows in zip(_outcomes(make, J), sequence, strict=True)
    )


def _distance_to_span(d: Tensor, J: Tensor) -> Tensor:
    span = torch.linalg.svd(J, full_matrices=False)
    V = span.Vh[1e-12 * span.S.max() < span.S]  # an orthonormal basis of the span of the rows
    return (d - V.T @ (V @ d)).norm()


def _is_permutation_invariant(make: Make, J: Tensor) -> bool:
    expected = _outcomes(make, J)
    orders = [torch.arange(len(J)).flip(0), torch.arange(len(J)).roll(1)]
    return all(
        (d - d_permuted).norm() <= TOLERANCE * d.norm().maximum(size(J))
        for order in orders
        for d, d_permuted in zip(expected, _outcomes(make, J[order]), strict=True)
    )


CHECKS: dict[Property, Callable[[Make, Tensor], bool]] = {
    Property.NON_CONFLICTING: _is_non_conflicting,
    Property.LINEAR_UNDER_SCALING: _is_linear_under_scaling,
    Property.WEIGHTED: _is_weighted,
    Property.PERMUTATION_INVARIANT: _is_permutation_invariant,
}

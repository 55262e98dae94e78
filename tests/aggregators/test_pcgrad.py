"""PCGrad against the projections of vectors that define it."""

from itertools import product

import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.testing import assert_close

from lightning_jd.aggregators import PCGrad, UPGrad
from tests.helpers.matrices import EXAMPLES, MATRICES, jacobians, size


def by_vectors(J: Tensor, orders: Tensor) -> Tensor:
    """The definition: one vector after the other, one projection after the other."""
    total = torch.zeros_like(J[0])
    for g, order in zip(J, orders, strict=True):
        projected = g
        for j in order.tolist():
            inner = projected @ J[j]
            if inner < 0:
                projected = projected - inner / (J[j] @ J[j]) * J[j]
        total = total + projected
    return total


@EXAMPLES
@given(J=jacobians())
def test_the_gramian_gives_what_vectors_give(J: Tensor) -> None:
    orders = PCGrad(seed=2).draw_orders(len(J))
    expected = by_vectors(J, orders)
    assert (PCGrad(seed=2)(J) - expected).norm() <= 1e-9 * size(J)


@pytest.mark.parametrize("name", [name for name, J in MATRICES.items() if len(J) == 2])
def test_for_two_rows_it_is_twice_upgrad_and_not_random(name: str) -> None:
    J = MATRICES[name]
    expected = 2 * UPGrad(reg=0)(J)
    assert_close(PCGrad(seed=0)(J), expected, rtol=0, atol=1e-12 * float(size(J)))
    assert torch.equal(PCGrad(seed=0)(J), PCGrad(seed=1)(J))


def test_the_example_of_the_paper_has_four_outcomes() -> None:
    aggregator, J = PCGrad(), MATRICES["paper_pcgrad"]
    outcomes = {tuple((aggregator(J) * 10).round().int().tolist()) for _ in range(64)}
    assert outcomes == {(4, 2), (8, 2), (4, -2), (8, -2)}


def test_all_orders_are_drawn_and_none_contains_its_own_row() -> None:
    aggregator = PCGrad()
    seen = {tuple(map(tuple, aggregator.draw_orders(3).tolist())) for _ in range(200)}
    assert seen == set(product([(1, 2), (2, 1)], [(0, 2), (2, 0)], [(0, 1), (1, 0)]))

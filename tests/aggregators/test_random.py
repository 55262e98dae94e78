"""Randomness is the aggregator's own, and a checkpoint continues it bit for bit."""

from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.testing import assert_close

from lightning_jd.aggregators import RGW, Aggregator, GradDrop, PCGrad, UPGrad
from tests.helpers.matrices import EXAMPLES, MATRICES, jacobians, normal, size

J = MATRICES["strongly_conflicting"]
every_random = pytest.mark.parametrize("cls", [GradDrop, PCGrad, RGW], ids=lambda cls: cls.name)


def draws(aggregator: Aggregator, count: int = 3) -> torch.Tensor:
    return torch.stack([aggregator(J) for _ in range(count)])


@every_random
def test_the_seed_decides_the_stream(cls: type[RGW]) -> None:
    assert torch.equal(draws(cls(seed=3)), draws(cls(seed=3)))
    assert not torch.equal(draws(cls(seed=3)), draws(cls(seed=4)))
    first, second = draws(cls(), count=2)
    assert not torch.equal(first, second)


@every_random
def test_a_checkpoint_continues_the_stream_bit_for_bit(cls: type[RGW], tmp_path: Path) -> None:
    original = cls(seed=3)
    draws(original)
    torch.save(original.state_dict(), tmp_path / "state.pt")
    expected = draws(original)
    fresh = cls()
    fresh.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True), strict=True)
    assert torch.equal(draws(fresh), expected)


@every_random
def test_the_global_generator_is_neither_read_nor_advanced(cls: type[RGW]) -> None:
    torch.manual_seed(0)
    before, first = torch.get_rng_state(), draws(cls())
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(draws(cls()), first)


def test_graddrop_keeps_the_positive_entries_as_often_as_its_definition_says() -> None:
    n = 30_000
    columns = torch.tensor([[-2.0], [1.0]]).expand(2, n)
    d = GradDrop(seed=5)(columns)
    assert set(d.unique().tolist()) == {-2.0, 1.0}
    share = float((d > 0).double().mean())
    assert abs(share - 1 / 3) <= 4 * (2 / 9 / n) ** 0.5  # four standard deviations


def test_graddrop_adds_all_entries_of_the_chosen_sign() -> None:
    columns = normal(6, 4, 500)
    d = GradDrop()(columns)
    positive, negative = columns.clamp(min=0).sum(dim=0), columns.clamp(max=0).sum(dim=0)
    assert bool(((d == positive) | (d == negative)).all())


# --- PCGrad against the projections of vectors that define it


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

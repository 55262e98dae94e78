"""Randomness is the aggregator's own, and a checkpoint continues it bit for bit."""

from pathlib import Path

import pytest
import torch

from lightning_jd.aggregators import RGW, Aggregator, GradDrop, PCGrad
from tests.helpers.matrices import MATRICES, normal

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

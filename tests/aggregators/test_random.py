"""Randomness is the aggregator's own, and a checkpoint continues it bit for bit."""

import copy
import pickle
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
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_copy_continues_the_stream(cls: type[RGW], duplicate: object) -> None:
    original = cls(seed=3)
    draws(original)
    assert callable(duplicate)
    assert torch.equal(draws(duplicate(original)), draws(original))


@every_random
def test_the_global_generator_is_neither_read_nor_advanced(cls: type[RGW]) -> None:
    torch.manual_seed(0)
    before, first = torch.get_rng_state(), draws(cls())
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(draws(cls()), first)


@every_random
def test_the_stream_does_not_depend_on_the_dtype(cls: type[RGW]) -> None:
    single, double = cls()(J.float()), cls()(J)
    torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-5)


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


def test_rgw_is_the_softmax_of_normal_numbers() -> None:
    aggregator = RGW(seed=7)
    weights = torch.stack([aggregator.weights(torch.eye(3)) for _ in range(4000)]).double()
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(4000).double(), rtol=0, atol=1e-6)
    differences = (weights[:, 0] / weights[:, 1]).log()  # of two normal numbers: variance 2
    assert abs(float(differences.mean())) <= 4 * (2 / 4000) ** 0.5
    assert abs(float(differences.var()) - 2) <= 4 * 2 * (2 / 4000) ** 0.5

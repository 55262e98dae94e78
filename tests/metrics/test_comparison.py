"""Metrics that compare methods: against values computed by hand, and inclusion-exclusion."""

import math
from itertools import combinations
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_jd.errors import ArgumentError, ShapeError
from lightning_jd.metrics import (
    DeltaM,
    Hypervolume,
    MeanRank,
    WeightEntropy,
    delta_m,
    hypervolume,
    mean_rank,
)
from tests.helpers.two_processes import run_in_two_processes
from tests.metrics.test_metrics import METRICS, fed


def test_delta_m_by_hand() -> None:
    values = torch.tensor([[90.0, 2.0], [45.0, 1.0]])
    # Accuracy 90 of 60: 50 % better; error 2 of 1: 100 % worse. Then 25 % worse, and equal.
    drops = delta_m(values, [60.0, 1.0], [True, False])
    assert drops.tolist() == pytest.approx([25.0, 12.5])
    gains = delta_m(values, [60.0, 1.0], [True, False], "gain")
    assert gains.tolist() == pytest.approx([-25.0, -12.5])


def test_delta_m_is_the_mean_over_updates() -> None:
    metric = DeltaM([60.0, 1.0], [True, False])
    metric.update(torch.tensor([90.0, 2.0]))
    metric.update(torch.tensor([[45.0, 1.0], [60.0, 1.0]]))
    assert float(metric.compute()) == pytest.approx((25.0 + 12.5 + 0.0) / 3)
    metric.reset()
    with pytest.warns(UserWarning, match="called before the ``update``"):
        assert math.isnan(float(metric.compute()))


def test_ranks_by_hand() -> None:
    values = torch.tensor([[3.0, 1.0], [3.0, 2.0], [1.0, 3.0], [math.nan, 4.0]])
    # First task: two share places 1 and 2, then 3, then 4. Second, low is better: 1, 2, 3, 4.
    expected = [(1.5 + 1) / 2, (1.5 + 2) / 2, 3.0, 4.0]
    assert mean_rank(values, [True, False]).tolist() == pytest.approx(expected)


def included_and_excluded(points: Tensor, reference: Tensor) -> float:
    """The volume of a union of boxes: of each, minus of pairs, plus of triples, and so on."""
    total = 0.0
    for count in range(1, len(points) + 1):
        for chosen in combinations(points, count):
            corner = torch.stack(chosen).amin(dim=0)
            total -= (-1) ** count * float((corner - reference).clamp(min=0).prod())
    return total


@pytest.mark.parametrize("tasks", [1, 2, 3, 4])
def test_the_hypervolume_is_that_of_inclusion_and_exclusion(tasks: int) -> None:
    generator = torch.Generator().manual_seed(tasks)
    for n in range(8):
        points = torch.rand(n, tasks, generator=generator, dtype=torch.float64)
        points = (points * 4).round() / 4 if n % 2 else points  # equal coordinates too
        reference = torch.full((tasks,), 0.2, dtype=torch.float64)
        expected = included_and_excluded(points, reference)
        found = float(hypervolume(points, reference, True))
        assert found == pytest.approx(expected, abs=1e-12)
        assert float(hypervolume(-points, -reference, False)) == pytest.approx(found)


def test_the_metric_of_the_hypervolume_collects_points() -> None:
    metric = Hypervolume([0.0, 0.0], True)
    with pytest.warns(UserWarning, match="called before the ``update``"):
        assert float(metric.compute()) == 0.0
    metric.update(torch.tensor([3.0, 1.0]))
    metric.update(torch.tensor([[1.0, 2.0], [-1.0, 9.0]]))
    assert float(metric.compute()) == 4.0
    with pytest.raises(ShapeError, match="that of the 2 tasks"):
        metric.update(torch.ones(3))
    with pytest.raises(ShapeError, match="one row per solution"):
        hypervolume(torch.ones(2), [0.0, 0.0], True)
    with pytest.raises(ShapeError, match="one for each of the 2 tasks"):
        Hypervolume([0.0, 0.0], [True])


def _check(rank: int, folder: Path) -> None:
    volume = Hypervolume([0.0, 0.0], True)
    volume.update(torch.tensor([[3.0, 1.0], [1.0, 2.0]][rank]))
    assert float(volume.compute()) == 4.0
    change = DeltaM([2.0], False)
    for _ in range(rank + 1):
        change.update(torch.tensor([[2.0], [3.0]][rank]))
    assert float(change.compute()) == pytest.approx(100 / 3)
    ranks = MeanRank(2, True)
    ranks.update(torch.tensor([[[2.0], [1.0]], [[1.0], [1.0]]][rank]))
    assert ranks.compute().tolist() == [1.25, 1.75]


@pytest.mark.slow
def test_two_processes_compute_what_one_would(tmp_path: Path) -> None:
    run_in_two_processes(_check, tmp_path)


# --- Two processes that see half of the steps each know what one process knows that sees all


STEPS = 600  # more than the history holds: stretches are merged on both processes


def _check_metrics(rank: int, folder: Path) -> None:
    for name, metric in METRICS.items():
        mine = fed(metric, range(STEPS // 2 * rank, STEPS // 2 * (rank + 1)))
        together, alone = mine.compute(), torch.load(folder / f"{name}.pt")
        assert_close(together, alone, msg=lambda text, name=name: f"{name}: {text}")
        mine.update(**mine._filter_kwargs(**_a_step()))  # local again after the computation
        assert mine.update_count == STEPS // 2 + 1
    uneven = WeightEntropy()
    for _ in range(10 if rank == 0 else 300):
        uneven.update(torch.ones(2))
    with pytest.raises(ArgumentError, match="about equally many updates"):
        uneven.compute()


def _a_step() -> dict[str, torch.Tensor]:
    ones = torch.ones(3, dtype=torch.float64)
    return {
        "gramian": torch.eye(3),
        "weights": ones,
        "predicted": ones,
        "before": ones,
        "after": ones,
    }


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: Path) -> None:
    for name, metric in METRICS.items():
        torch.save(fed(metric, range(STEPS)).compute(), tmp_path / f"{name}.pt")
    run_in_two_processes(_check_metrics, tmp_path)

"""Two processes that see half of the steps each know what one process knows that sees all."""

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from lightning_jd.errors import ArgumentError
from lightning_jd.metrics import WeightEntropy
from tests.helpers.two_processes import run_in_two_processes
from tests.metrics.test_metrics import METRICS, fed

STEPS = 600  # more than the history holds: stretches are merged on both processes


def _check(rank: int, folder: Path) -> None:
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
    run_in_two_processes(_check, tmp_path)

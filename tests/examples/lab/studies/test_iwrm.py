"""``iwrm`` on tiny files of MNIST's format, end to end."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from examples.lab.studies import _workers
from examples.lab.studies._comparison import compared
from examples.lab.studies._curves import curves_of
from examples.lab.studies._rates import best_runs
from examples.lab.studies._run import Outcome, Run
from examples.lab.studies._search import learning_rate
from examples.lab.studies._settings import Setting
from examples.lab.studies.iwrm import iwrm

FIRST = Run("mnist", "mean", None, 1.0, seed=1, epochs=1)


def outcome(*losses: float, end: Any = "finished") -> Outcome:
    return Outcome(list(losses), *[[0.5] * len(losses)] * 4, end)


def tiny(folder: Path, **arguments: Any) -> Path:
    settings = {"seeds": 2, "epochs": 1, "size": 16, "batch_size": 8, "workers": 1}
    iwrm(data=str(folder), **(settings | arguments), output=str(folder / "out"))
    return folder / "out"


@pytest.mark.slow
def test_methods_are_trained_tabulated_and_drawn_once(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = {"aggregators": ["mean", "upgrad", "graddrop"], "regs": [1e-3], "optimizer": "adam"}
    output = tiny(folder, **chosen)
    report = json.loads((output / "iwrm.json").read_text())
    methods = {row["method"] for row in report["rows"]}
    assert methods == {"Mean", "UPGrad, reg 1e-3", "GradDrop"}  # with Adam Mean is not SGD
    assert "Adam" in report["title"]
    areas = [row["area"] for row in report["rows"]]
    assert areas == sorted(areas)
    assert all(row["lr"].count(",") == 1 for row in report["rows"])
    with (output / "curves.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert {line["method"] for line in lines} == methods
    assert {line["quantity"] for line in lines} == {"loss", "similarity"}
    assert (output / "iwrm.png").read_bytes().startswith(b"\x89PNG")
    assert "area / Mean's" in (output / "iwrm.md").read_text()
    assert "UPGrad" in capsys.readouterr().out
    runs = (output / "runs.jsonl").read_text()

    def must_not_train(*_: object) -> Outcome:
        raise AssertionError("a finished run was repeated")

    monkeypatch.setattr(_workers, "train", must_not_train)
    tiny(folder, **chosen)
    assert (output / "runs.jsonl").read_text() == runs


class Landscape:
    """A crew whose areas are known: least at a rate of 10^(best / 12)."""

    def __init__(self, best: dict[int, int], diverges_above: dict[int, int] | None = None) -> None:
        self.best, self.limit = best, diverges_above or {}
        self.asked: list[tuple[int, int]] = []

    def __call__(self, run: Run, rival: Any = None) -> Outcome:
        exponents = {round(learning_rate(k), 12): k for k in range(-80, 40)}
        k = exponents.get(round(run.lr, 12), 999)
        self.asked.append((run.seed, k))
        if k > self.limit.get(run.seed, 998):
            return outcome(end="diverged")
        return outcome(10 + abs(k - self.best[run.seed]))


def test_the_small_budget_walks_once_and_keeps_the_rate() -> None:
    landscape = Landscape({1: -22, 2: -20, 3: -24})
    best = best_runs(FIRST, 3, "small", landscape)
    assert [run.lr for run, _ in best] == [learning_rate(-22)] * 3
    assert [run.seed for run, _ in best] == [1, 2, 3]
    assert [seed for seed, _ in landscape.asked].count(2) == 1
    assert {k for seed, k in landscape.asked if seed == 1} >= {-28, -24, -22, -20}


def test_a_seed_that_diverges_takes_a_smaller_rate() -> None:
    landscape = Landscape({1: -12, 2: -12, 3: -12}, diverges_above={2: -17})
    best = best_runs(FIRST, 3, "small", landscape)
    assert [run.lr for run, _ in best] == [learning_rate(k) for k in (-12, -18, -12)]


def test_rows_have_errors_ratios_and_say_what_diverged() -> None:
    run = Run("mnist", "mean", None, 0.1, seed=1, epochs=1, size=16, batch=8)
    best = {
        Setting("mean"): [(run, outcome(4.0, 2.0)), (run, outcome(6.0, 4.0))],
        Setting("upgrad", 1e-4): [(run, outcome(2.0, 2.0)), (run, outcome(2.0, 2.0))],
        Setting("mgda"): [(run, outcome(2.0, 2.0)), (run, outcome(end="diverged"))],
    }
    rows = {row["method"]: row for row in compared(best)}
    assert list(rows) == ["UPGrad, reg 1e-4", "Mean (SGD)", "MGDA"]
    assert rows["Mean (SGD)"]["area"] == 4.0
    assert rows["Mean (SGD)"]["error"] == pytest.approx(1.0)
    assert rows["UPGrad, reg 1e-4"]["ratio"] == 0.5
    assert (rows["MGDA"]["area"], rows["MGDA"]["not_finished"]) == (None, 1)


def test_curves_are_means_over_quarters_of_an_epoch_and_seeds() -> None:
    run = Run("mnist", "mean", None, 0.1, seed=1, epochs=1, size=64, batch=8)
    first, second = outcome(*[1.0] * 4, *[2.0] * 4), outcome(*[3.0] * 4, *[4.0] * 4)
    loss, similarity = curves_of([(run, first), (run, second), (run, outcome(end="diverged"))])
    assert loss.points[0] == pytest.approx((0.125, 2.0, 1.0))
    assert [mean for _, mean, _ in loss.points] == [2.0, 2.0, 3.0, 3.0]
    assert [error for _, _, error in similarity.points] == [0.0] * 4

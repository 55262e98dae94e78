"""The multi-task study: its search, its page against values by hand, and the command end to end."""

import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.lab.data.multitask import Multitask, Part, Task
from examples.lab.report import Report
from examples.lab.studies import mtl as module
from examples.lab.studies._search import learning_rate
from examples.lab.studies.mtl import mtl
from examples.lab.studies.multitask._page import (
    Comparison,
    conclusions,
    rows_of,
    worst_drops,
)
from examples.lab.studies.multitask._search import BUDGETS, Budget, best_trials
from examples.lab.studies.multitask._training import judged, loss_of
from examples.lab.studies.multitask._trial import FAILED, Result, Trial

TRIAL = Trial("multimnist", "lenet", "equal", "", 1e-3, 0.0, 1, 64, 2, 16, 5)
SMALL = BUDGETS["small"]
TASKS = (Task("left", "classes", 10), Task("error", "number", scale=2.0))


def result(*metrics: float, score: float = 0.0, seconds: float = 1.0) -> Result:
    names = ("left", "error")
    return Result(
        score, test=dict(zip(names, metrics, strict=False)), seconds_per_step=seconds, conflict=0.5
    )


class Landscape:
    """Scores with one best rate and decay; notes what was asked."""

    def __init__(self, exponent: int, decay: float) -> None:
        self.exponent, self.decay = exponent, decay
        self.asked: list[Trial] = []

    def __call__(self, trial: Trial) -> Result:
        self.asked.append(trial)
        away = abs(12 * math.log10(trial.lr) - self.exponent)
        return Result(-away - abs(trial.weight_decay - self.decay), test={"left": 1.0})


@pytest.mark.parametrize("exponent", [-36, -54, -12])
@pytest.mark.parametrize("decay", [0.0, 1e-1])
def test_the_walk_finds_rate_and_decay_and_other_seeds_keep_them(
    exponent: int, decay: float
) -> None:
    landscape = Landscape(exponent, decay)
    found = best_trials(replace(TRIAL, lr=0.0), 3, SMALL, landscape)
    assert [trial.seed for trial, _ in found] == [1, 2, 3]
    assert {trial.lr for trial, _ in found} == {learning_rate(exponent)}
    assert {trial.weight_decay for trial, _ in found} == {decay}
    assert {trial.weight_decay for trial in landscape.asked[:3]} == {0.0}
    others = {(trial.seed, trial.lr) for trial in landscape.asked if trial.seed > 1}
    assert len(others) == 4  # each makes sure that the next lower rate is no better


@pytest.fixture
def comparison() -> Comparison:
    single = {
        "left": [(TRIAL, result(80.0)), (TRIAL, result(80.0))],
        "error": [(TRIAL, Result(0.0, test={"error": 2.0}))] * 2,
    }
    methods = {
        "equal": [(TRIAL, result(72.0, 2.0)), (TRIAL, result(80.0, 2.2))],  # 5 %, 5 %
        "upgrad": [(TRIAL, result(80.0, 1.0, seconds=1.5)), (TRIAL, result(80.0, 1.04))],
        "mgda": [(TRIAL, result(40.0, 4.0)), (TRIAL, FAILED)],
    }
    return Comparison(TASKS, single, methods)


def test_the_page_by_hand(comparison: Comparison) -> None:
    rows = {str(row["method"]): row for row in rows_of(comparison)}
    assert list(rows) == ["single task", "UPGrad", "Equal (plain)", "MGDA"]
    equal, upgrad, mgda = rows["Equal (plain)"], rows["UPGrad"], rows["MGDA"]
    assert equal["delta_m"] == pytest.approx(5.0)
    assert equal["error"] == pytest.approx(0.0, abs=1e-9)
    assert upgrad["delta_m"] == pytest.approx((-25.0 - 24.0) / 2)
    assert upgrad["error"] == pytest.approx(statistics.stdev([25.0, 24.0]) / math.sqrt(2))
    assert (upgrad["left"], upgrad["error error"]) == (80.0, pytest.approx(0.02))
    # The means over seeds: left 76 of 80, error 2.1 of 2.
    assert worst_drops(comparison, "equal") == pytest.approx({"left": 5.0, "error": 5.0})
    assert upgrad["worst"] == pytest.approx(0.0)
    assert mgda["failed"] == 1
    assert mgda["delta_m"] == pytest.approx((50.0 + 100.0) / 2)
    assert (upgrad["rank"], equal["rank"], mgda["rank"]) == (1.0, 2.0, 3.0)
    assert upgrad["steps"] == pytest.approx(1.25)
    assert (upgrad["conflict"], upgrad["harmed"]) == (0.5, None)
    assert (upgrad["lr"], rows["single task"]["lr"]) == ("0.001", "0.001; 0.001")


def test_conclusions_are_drawn_beyond_the_noise(comparison: Comparison) -> None:
    single, plain = conclusions(comparison)
    assert "single-task training (0.00 %)" in single
    assert "better: UPGrad; worse: Equal (plain); not significantly different: none" in single
    assert "the tuned plain sum (5.00 %)" in plain
    assert (
        "better: UPGrad; worse: none; not significantly different: none" in plain
    )  # MGDA has one seed only


def test_metrics_and_scores() -> None:
    classes, binary = Task("a", "classes", 3), Task("b", "binary")
    number = Task("c", "number", scale=5.0)
    scores = torch.tensor([[0.0, 1.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, 3.0], [1.0, 0.0, 0.0]])
    assert judged(classes, scores, torch.tensor([1, 0, 2, 2])) == (75.0, 0.75)
    logits = torch.tensor([[0.1], [0.4], [0.35], [0.8]])
    # Of the four pairs of a no and a yes, three are in order.
    assert judged(binary, logits, torch.tensor([0.0, 0.0, 1.0, 1.0])) == (75.0, 0.75)
    error, score = judged(number, logits, torch.tensor([1.1, 0.4, 0.35, 0.8]))
    assert (error, score) == (pytest.approx(1.25), pytest.approx(-0.25))
    for task in (classes, binary, number):
        found = judged(task, scores * float("nan"), torch.tensor([1, 0, 1, 0]))
        assert all(math.isnan(value) for value in found)
    for task, output, target in (
        (classes, scores, torch.tensor([1, 0, 2, 2])),
        (binary, logits, torch.tensor([0.0, 0.0, 1.0, 1.0])),
        (number, logits, torch.zeros(4)),
    ):
        assert loss_of(task, output, target).shape == ()


@pytest.fixture
def data() -> Multitask:
    """Bright bars under noise: the row is the left digit, the column the right one."""

    def part(n: int, seed: int) -> Part:
        generator = torch.Generator().manual_seed(seed)
        left, right = (torch.randint(0, 3, (n,), generator=generator) for _ in range(2))
        images = torch.randn(n, 1, 36, 36, generator=generator)
        images[torch.arange(n), 0, 10 * left + 4] += 2.0
        images[torch.arange(n), 0, :, 10 * right + 4] += 2.0
        return Part((images,), {"left": left, "right": right})

    tasks = (Task("left", "classes", 3), Task("right", "classes", 3))
    return Multitask(tasks, part(96, 0), part(48, 1), part(48, 2))


@pytest.fixture
def study(
    data: Multitask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    """The command on tiny data, with a budget of nothing."""
    monkeypatch.setattr(module, "load_multitask", lambda dataset, folder: data)
    tiny = Budget(96, 1, 1, (0.0,), sweeps=False)
    monkeypatch.setattr(module, "budget_of", lambda name, dataset: tiny)

    def run(**arguments: Any) -> dict[str, Any]:
        settings = {"methods": ["equal", "upgrad"], "seeds": 2, "batch_size": 48, "workers": 1}
        mtl(**(settings | arguments), output=str(tmp_path / "out"))
        report = Report.read(tmp_path / "out" / "mtl.json")
        return {"rows": {str(row["method"]): row for row in report.rows}, "notes": report.notes}

    return run


@pytest.mark.slow
def test_the_command_writes_its_page_and_resumes(
    study: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("rich")
    found = study()
    assert set(found["rows"]) == {"single task", "Equal (plain)", "UPGrad"}
    assert found["rows"]["Equal (plain)"]["steps"] == 1.0
    assert "Not finished" not in " ".join(found["notes"])
    assert (tmp_path / "out" / "mtl.png").read_bytes().startswith(b"\x89PNG")
    lines = (tmp_path / "out" / "trials.jsonl").read_text()

    def must_not_train(*_: object) -> Result:
        raise AssertionError("a finished run was repeated")

    monkeypatch.setattr(module, "train", must_not_train)
    assert study()["rows"] == found["rows"]
    assert study(page=True)["rows"] == found["rows"]
    assert (tmp_path / "out" / "trials.jsonl").read_text() == lines

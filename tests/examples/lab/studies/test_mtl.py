"""The multi-task study: its search, its page against values by hand, and the command end to end."""

import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.lab.data.multitask import Multitask, Part, Task
from examples.lab.report import Report
from examples.lab.studies import mtl as module
from examples.lab.studies.mtl import mtl
from examples.lab.studies.multitask._page import (
    Comparison,
    rows_of,
    worst_drops,
)
from examples.lab.studies.multitask._search import Budget
from examples.lab.studies.multitask._training import judged, loss_of
from examples.lab.studies.multitask._trial import FAILED, Result, Trial

TRIAL = Trial("multimnist", "lenet", "equal", "", 1e-3, 0.0, 1, 64, 2, 16, 5)
TASKS = (Task("left", "classes", 10), Task("error", "number", scale=2.0))


def result(*metrics: float, score: float = 0.0, seconds: float = 1.0) -> Result:
    names = ("left", "error")
    return Result(
        score, test=dict(zip(names, metrics, strict=False)), seconds_per_step=seconds, conflict=0.5
    )


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

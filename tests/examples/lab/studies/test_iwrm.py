"""``iwrm`` on tiny files of MNIST's format, end to end."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from examples.lab.crew import side_by_side
from examples.lab.studies import _workers
from examples.lab.studies._comparison import compared
from examples.lab.studies._curves import curves_of
from examples.lab.studies._rates import best_runs
from examples.lab.studies._run import Outcome, Run
from examples.lab.studies._search import learning_rate
from examples.lab.studies._settings import PAPER_AGGREGATORS, Setting
from examples.lab.studies._store import stored_runs
from examples.lab.studies._workers import crew_of
from examples.lab.studies.iwrm import iwrm
from lightning_jd import cli
from lightning_jd.errors import ArgumentError, UnknownNameError

FIRST = Run("mnist", "mean", None, 1.0, seed=1, epochs=1)


def outcome(*losses: float, end: Any = "finished") -> Outcome:
    return Outcome(list(losses), *[[0.5] * len(losses)] * 4, end)


def tiny(folder: Path, **arguments: Any) -> Path:
    settings = {"seeds": 2, "epochs": 1, "size": 16, "batch_size": 8, "workers": 1}
    iwrm(data=str(folder), **(settings | arguments), output=str(folder / "out"))
    return folder / "out"


@pytest.mark.slow
def test_every_aggregator_of_the_paper_is_trained(folder: Path) -> None:
    report = json.loads((tiny(folder, seeds=1) / "iwrm.json").read_text())
    methods = {row["method"] for row in report["rows"]}
    assert {"Mean (SGD)", "UPGrad, reg 1e-4", "UPGrad, reg 1e-3", "DualProj, reg 1e-4"} <= methods
    assert len(methods) == len(PAPER_AGGREGATORS) + 1  # two regularisations of UPGrad
    assert all(row["not_finished"] == 0 for row in report["rows"])


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seeds": 0}, r"`seeds`, `aggregators` and `regs` must not be zero or empty"),
        ({"aggregators": []}, r"must not be zero or empty, got 2, \[\]"),
        ({"batch_size": 1}, r"`batch_size` must be at least 2 \(a single loss is plain SGD\)"),
        ({"batch_size": 32}, r"at most `size`, got 32 and 16"),
        ({"workers": 0}, r"`workers` must be at least 1, got 0"),
        ({"size": 41}, r"`size` must be from 1 to 40"),
    ],
)
def test_what_cannot_work_is_refused(arguments: dict[str, Any], message: str, folder: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        tiny(folder, **arguments)


def test_unknown_names_are_refused(folder: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"`aggregators` must be one of .*got 'upgrd'"):
        tiny(folder, aggregators=["upgrd"])
    with pytest.raises(UnknownNameError, match=r"`dataset` must be one of .*'svhn', got 'svnh'"):
        tiny(folder, dataset="svnh")


@pytest.mark.slow
def test_a_run_that_raises_does_not_stop_the_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = _workers.train

    def train(run: Run, *arguments: Any) -> Outcome:
        if run.aggregator == "mgda":
            raise RuntimeError("out of luck")
        return real(run, *arguments)

    monkeypatch.setattr(_workers, "train", train)
    output = tiny(folder, aggregators=["mgda", "mean"])
    report = json.loads((output / "iwrm.json").read_text())
    assert [row["method"] for row in report["rows"]] == ["Mean (SGD)", "MGDA"]
    assert report["rows"][1]["area"] is None
    assert any(
        note.startswith("MGDA: ") and note.endswith("RuntimeError: out of luck")
        for note in report["notes"]
    )
    stored = (output / "runs.jsonl").read_text()
    assert "mgda" not in stored  # so that the next start tries again


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


@pytest.mark.parametrize(
    ("aggregator", "optimizer", "start"),
    [("mean", "sgd", -8), ("mgda", "sgd", -4), ("mean", "adam", -36), ("mgda", "adam", -36)],
)
def test_the_walk_begins_where_the_rates_of_the_optimizer_are(
    aggregator: str, optimizer: Any, start: int
) -> None:
    landscape = Landscape({1: start})
    best_runs(replace(FIRST, aggregator=aggregator, optimizer=optimizer), 1, "small", landscape)
    assert landscape.asked[0] == (1, start)


def test_a_seed_that_diverges_takes_a_smaller_rate() -> None:
    landscape = Landscape({1: -12, 2: -12, 3: -12}, diverges_above={2: -17})
    best = best_runs(FIRST, 3, "small", landscape)
    assert [run.lr for run, _ in best] == [learning_rate(k) for k in (-12, -18, -12)]


def test_a_seed_that_does_far_worse_takes_smaller_rates_until_it_does_not() -> None:
    landscape = Landscape({1: -12, 2: -20, 3: -16})
    best = best_runs(FIRST, 3, "small", landscape)
    # At -12 the second seed has 18 against 10 of the first, at -16 only 14; the third has 14.
    assert [run.lr for run, _ in best] == [learning_rate(k) for k in (-12, -16, -12)]


def test_other_seeds_try_larger_rates_where_the_first_has_diverged() -> None:
    # The best of the first seed is at the edge of its stability; others are stable beyond it.
    landscape = Landscape({1: -8, 2: -8, 3: -12}, diverges_above={1: -11})
    best = best_runs(FIRST, 3, "small", landscape)
    assert [run.lr for run, _ in best] == [learning_rate(k) for k in (-12, -8, -12)]
    assert [k for seed, k in landscape.asked if seed == 2] == [-12, -10, -8, -6]
    assert [k for seed, k in landscape.asked if seed == 3] == [-12, -10]


def test_a_seed_keeps_the_rate_if_smaller_ones_are_no_better() -> None:
    landscape = Landscape({1: -12, 2: 0})
    best = best_runs(FIRST, 2, "small", landscape)
    assert [run.lr for run, _ in best] == [learning_rate(-12)] * 2
    assert [k for seed, k in landscape.asked if seed == 2] == [-12, -14]


def test_the_budget_of_the_paper_is_72_rates_for_every_seed() -> None:
    landscape = Landscape({1: -12, 2: -24})
    best = best_runs(FIRST, 2, "paper", landscape)
    # 22 + 50, but both ends of the second stage are known from the first
    assert [seed for seed, _ in landscape.asked] == [1] * 70 + [2] * 70
    assert [o.finished for _, o in best] == [True, True]


def test_runs_are_counted_when_they_are_finished(tmp_path: Path) -> None:
    announced: list[str] = []

    def trained(run: Run, rival: Any) -> Outcome:
        counts.append(len(announced))
        return outcome(run.lr)

    counts: list[int] = []
    study = crew_of(stored_runs(tmp_path / "runs"), trained, announced.append)
    for seed in (1, 2, 1):  # the last one is in the store
        study(replace(FIRST, seed=seed), None)
    assert counts == [0, 1]
    assert len(announced) == 3


def test_the_best_rival_is_handed_to_the_next_rate(tmp_path: Path) -> None:
    rivals: list[Any] = []

    def trained(run: Run, rival: Any) -> Outcome:
        rivals.append(rival)
        return outcome(run.lr)  # the smaller the better: the walk goes on to smaller rates

    best_runs(FIRST, 1, "small", crew_of(stored_runs(tmp_path / "runs"), trained, lambda _: None))
    assert rivals[0] is None
    assert rivals[1] == [learning_rate(-8)]
    assert rivals[2] == [learning_rate(-12)]


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


def test_jobs_side_by_side_answer_in_their_order() -> None:
    def job(i: int) -> int:
        time.sleep(0.05 * (3 - i))
        return i

    assert side_by_side([lambda i=i: job(i) for i in range(3)], workers=3) == [0, 1, 2]


@pytest.mark.slow
def test_a_killed_study_leaves_no_worker_and_goes_on_where_it_was(folder: Path) -> None:
    output = folder / "out"
    words = ["--data", str(folder), "--aggregators", "[mean, upgrad]", "--epochs", "2"]
    words += ["--size", "16", "--batch-size", "8", "--seeds", "2", "--workers", "2"]
    command = [sys.executable, "-m", "examples.lab", "iwrm", *words, "--output", str(output)]
    study = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    runs = output / "runs.jsonl"
    deadline = time.monotonic() + 300
    while not runs.exists() or runs.read_text().count("\n") < 2:
        assert study.poll() is None, "the study ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    children = [int(pid) for pid in _children(study.pid)]
    assert len(children) >= 2
    os.kill(study.pid, signal.SIGKILL)
    study.wait()
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    kept = [line for line in runs.read_text().splitlines(keepends=True) if line.endswith("\n")]
    assert cli.main(["iwrm", *words[:-1], "1", "--output", str(output)]) == 0
    assert runs.read_text().startswith("".join(kept))
    assert (output / "iwrm.png").exists()


def _children(pid: int) -> list[str]:
    """Of all threads: workers are started by the one that needs them first."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [child for file in files for child in file.read_text().split()]


@pytest.mark.slow
def test_ctrl_c_ends_workers_too(folder: Path) -> None:
    words = ["--data", str(folder), "--epochs", "500", "--size", "40", "--batch-size", "8"]
    command = [sys.executable, "-m", "examples.lab", "iwrm", *words, "--workers", "2"]
    command += ["--output", str(folder / "out")]
    study = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # whoever runs the tests in the background ignores Ctrl-C, which would be inherited
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 120
        while len(_children(study.pid)) < 3:  # two workers, and Python's tracker of resources
            assert study.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(1)
        os.killpg(study.pid, signal.SIGINT)  # as a terminal does: to the whole group
        _, errors = study.communicate(timeout=60)
    finally:
        study.kill()
    assert study.returncode == 130
    assert "Interrupted." in errors
    assert "Traceback" not in errors

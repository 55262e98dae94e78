"""The multi-task study: its search, its page against values by hand, and the command end to end."""

import json
import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.lab import __main__ as cli
from examples.lab.data.multitask import Multitask, Part, Task
from examples.lab.report import Report
from examples.lab.studies import mtl as module
from examples.lab.studies._search import learning_rate
from examples.lab.studies.mtl import METHODS, mtl
from examples.lab.studies.multitask import _training
from examples.lab.studies.multitask._figure import draw
from examples.lab.studies.multitask._page import (
    Comparison,
    apart,
    conclusions,
    label_of,
    rows_of,
    worst_drops,
)
from examples.lab.studies.multitask._search import BUDGETS, Budget, best_trials
from examples.lab.studies.multitask._training import evaluated, judged, loss_of, train
from examples.lab.studies.multitask._trial import FAILED, Result, Trial, stored_trials
from examples.lab.work.multitask import multitask_network
from lightning_jd.errors import ArgumentError, UnknownNameError

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


def test_the_sweep_asks_every_seed_for_every_pair() -> None:
    landscape = Landscape(-33, 1e-2)
    found = best_trials(TRIAL, 2, BUDGETS["paper"], landscape)
    assert {(trial.lr, trial.weight_decay) for trial, _ in found} == {(learning_rate(-33), 1e-2)}
    for seed in (1, 2):
        pairs = {(t.lr, t.weight_decay) for t in landscape.asked if t.seed == seed}
        assert len(pairs) == 13 * 4


def test_a_rate_that_was_luck_is_lowered_for_the_seeds_that_it_ruins() -> None:
    def trained(trial: Trial) -> Result:
        k = round(12 * math.log10(trial.lr))
        unlucky = trial.seed == 2 and k > -30
        return Result(-50.0 if unlucky else -abs(k + 18), test={"left": 1.0})

    found = best_trials(TRIAL, 3, SMALL, trained)
    rates = [round(12 * math.log10(trial.lr)) for trial, _ in found]
    assert rates == [-18, -30, -18]


def test_a_rate_at_which_everything_fails_is_never_chosen() -> None:
    def trained(trial: Trial) -> Result:
        return FAILED if trial.lr > 2e-4 else Result(0.5, test={"left": 50.0})

    ((trial, found),) = best_trials(TRIAL, 1, SMALL, trained)
    assert trial.lr < 2e-4
    assert not found.failed


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


@pytest.mark.parametrize("seed", range(20))
def test_two_samples_are_apart_if_welchs_test_says_so(seed: int) -> None:
    from scipy.stats import ttest_ind

    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(3, generator=generator).tolist()
    b = (1.5 + 0.3 * torch.randn(4, generator=generator)).tolist()
    significant = ttest_ind(a, b, equal_var=False).pvalue < 0.05
    assert (apart(a, b) == 0) == (not significant)
    assert apart(a, b) == -apart(b, a)


def test_noise_is_no_conclusion(comparison: Comparison) -> None:
    noisy = replace(
        comparison,
        methods={"equal": [(TRIAL, result(70.0, 2.0)), (TRIAL, result(92.0, 2.0))]},
    )
    (single, _) = conclusions(noisy)
    assert "not significantly different: Equal (plain)" in single


@pytest.mark.parametrize("tasks", [2, 4])
def test_the_figure(comparison: Comparison, tasks: int, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    if tasks == 4:  # more pairs than panels: mean against worst
        names = ("left", "error", "third", "fourth")
        many = tuple(Task(name, "number") for name in names)
        test = dict.fromkeys(names, 1.0)
        runs = [(TRIAL, Result(0.0, test=test))] * 2
        comparison = Comparison(many, dict.fromkeys(names, runs), {"equal": runs})
    path = draw(comparison, "title", tmp_path / "new" / "mtl.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_labels() -> None:
    assert [label_of(name) for name in ("single", "equal", "nashmtl", "famo")] == [
        "single task",
        "Equal (plain)",
        "NashMTL",
        "FAMO",
    ]


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


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_both_tasks(method: str, data: Multitask) -> None:
    found = train(replace(TRIAL, method=method, lr=3e-3, epochs=6, size=96), data)
    assert set(found.test) == {"left", "right"}
    assert min(found.test.values()) > 60.0  # a third by chance
    assert found.score == pytest.approx(statistics.mean(found.validation.values()) / 100)
    assert found.seconds_per_step > 0


@pytest.mark.slow
def test_a_single_task_trains_its_head_only(data: Multitask) -> None:
    found = train(replace(TRIAL, method="single", task="right", lr=3e-3, epochs=6), data)
    assert set(found.test) == {"right"}
    assert found.test["right"] > 60.0
    assert found.conflict is None


def test_the_best_epoch_is_judged_and_patience_ends_a_run(
    data: Multitask, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = evaluated
    scores = iter([0.2, 0.9, 0.5, 0.4, 0.3, 0.2])
    states: list[float] = []

    def falling(network: Any, part: Part, tasks: Any) -> dict[str, tuple[float, float]]:
        weight = float(network.heads[0][0].weight.detach().sum())
        if part is data.test:
            assert weight == states[1]
            return real(network, part, tasks)
        states.append(weight)
        score = next(scores)
        return {task.name: (100 * score, score) for task in tasks}

    monkeypatch.setattr(_training, "evaluated", falling)
    found = train(replace(TRIAL, epochs=6, patience=2), data)
    assert (found.best_epoch, found.epochs, found.score) == (2, 4, 0.9)


def test_a_run_that_is_never_finite_has_failed(data: Multitask) -> None:
    inputs = (data.train.inputs[0] * float("nan"),)
    broken = Multitask(data.tasks, Part(inputs, data.train.targets), data.validation, data.test)
    found = train(replace(TRIAL, method="upgrad"), broken)
    assert found == FAILED
    assert found.failed


def test_results_survive_the_file(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    store = stored_trials(path)
    store.add(TRIAL, result(1.0, 2.0))
    store.add(replace(TRIAL, seed=2), FAILED)
    again = stored_trials(path)
    assert again[TRIAL] == result(1.0, 2.0)
    assert again[replace(TRIAL, seed=2)].failed
    path.write_text('{"run": {}}\n')
    with pytest.raises(ArgumentError, match=r"line 1 of .* is not one"):
        stored_trials(path)


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


def test_the_page_tells_what_is_not_finished(
    study: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("rich")
    with pytest.raises(ArgumentError, match=r"`page` needs .* every single task, .* only none"):
        study(page=True)
    count = 0

    def fake(trial: Trial, data: Multitask) -> Result:
        nonlocal count
        count += 1
        if trial.method == "upgrad":
            raise KeyboardInterrupt
        if trial.method == "mgda":
            raise ValueError("does not work")
        metrics = {task.name: 50.0 for task in data.tasks if trial.task in ("", task.name)}
        return Result(0.5, validation=metrics, test=metrics, seconds_per_step=1.0)

    monkeypatch.setattr(module, "train", fake)
    with pytest.raises(KeyboardInterrupt):
        study()
    found = study(page=True)
    assert set(found["rows"]) == {"single task", "Equal (plain)"}
    assert "Not finished: UPGrad." in found["notes"]
    found = study(methods=["equal", "mgda"])  # one that fails does not stop the others
    assert found["rows"]["MGDA"]["failed"] == 2
    assert any("ended with ValueError: does not work" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seeds": 0}, "`seeds`, `batch_size` and `methods` must not be zero or empty"),
        ({"methods": []}, "`seeds`, `batch_size` and `methods` must not be zero or empty"),
        ({"epochs": 0}, "`epochs` must be at least 1, got 0"),
        ({"workers": -1}, "`workers` must be at least 1, got -1"),
        ({"size": 97}, "`size` must be from 2 to 96"),
    ],
)
def test_wrong_numbers_are_named(
    study: Callable[..., dict[str, Any]], arguments: dict[str, Any], message: str
) -> None:
    pytest.importorskip("rich")
    with pytest.raises(ArgumentError, match=message):
        study(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataset": "mnist"}, "`dataset` must be one of"),
        ({"network": "mlp"}, "`network` must be one of 'lenet'"),
        ({"methods": ["upgrade"]}, "Did you mean 'upgrad'"),
    ],
)
def test_unknown_names_are_named(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=message):
        mtl(**arguments, output=str(tmp_path))


def test_a_table_is_trained_on_too(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)

    def part(n: int) -> Part:
        numbers = torch.randn(n, 3, generator=generator)
        codes = torch.randint(0, 5, (n, 2), generator=generator)
        targets = {"sign": (numbers[:, 0] > 0).float(), "code": (codes[:, 0] > 2).float()}
        return Part((numbers, codes), targets)

    tasks = (Task("sign", "binary"), Task("code", "binary"))
    table = Multitask(tasks, part(64), part(64), part(64))
    for network in ("mlp", "mmoe"):
        trial = replace(TRIAL, dataset="census", network=network, method="upgrad")
        found = train(replace(trial, lr=1e-2, epochs=5), table)
        assert found.test["sign"] > 70.0, network


def test_the_network_is_that_of_the_seed() -> None:
    outputs = {"a": 2}
    torch.manual_seed(1)
    first = multitask_network("lenet", outputs).state_dict()
    torch.manual_seed(1)
    second = multitask_network("lenet", outputs).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_command_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["mtl", "--help"])
    assert "tuned plain sum" in " ".join(capsys.readouterr().out.split())


def test_json_of_a_failure_is_read_by_python(tmp_path: Path) -> None:
    stored_trials(tmp_path / "t").add(TRIAL, FAILED)
    assert json.loads((tmp_path / "t").read_text())["result"]["score"] == float("-inf")

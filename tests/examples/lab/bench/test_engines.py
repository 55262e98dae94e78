"""The helpers of `bench engines` on tiny work; nothing here is a measurement."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from examples.lab.bench import _growth, _memory, engines
from examples.lab.bench._cases import CASES, Case
from examples.lab.bench._growth import Point
from examples.lab.bench._memory import Peak
from examples.lab.work import networks
from examples.lab.work.networks import TrunkAndHeads, Work
from examples.lab.work.steps import ENGINES, make_step
from lightning_jd.errors import ArgumentError, SetupError, UnknownNameError

TINY = {
    "tiny-instances": Case(
        "tiny-instances", lambda: networks.mlp(4, 8, inputs=6), "mean", 1e6, 1e6
    ),
    "tiny-tasks": Case(
        "tiny-tasks", lambda: networks.mlp_tasks(2, 4, 8), "upgrad", 1e-6, skips=("autojac",)
    ),
}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replace the lines of the table by two that take no time."""
    for name in list(CASES):
        monkeypatch.delitem(CASES, name)
    for name, case in TINY.items():
        monkeypatch.setitem(CASES, name, case)
    return


@pytest.mark.parametrize("name", ["mnist-mean", "resnet18", "transformer", "cnn-8-tasks"])
def test_the_models_take_their_batch(name: str) -> None:
    work = CASES[name].build()
    assert len(work.x) in (32, 64)
    small = Work(work.model, work.x[:2], work.y[:2])
    losses = small.losses()
    assert len(losses) == (8 if small.has_tasks else 2)
    assert isinstance(losses, list) == isinstance(work.model, TrunkAndHeads)


def test_the_resnet_is_a_resnet18() -> None:
    convolutions = [m for m in networks.resnet18(1).model.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 1 + 16 + 3
    total = sum(p.numel() for p in networks.resnet18(1).model.parameters())
    assert total == pytest.approx(11.18e6, rel=1e-2)


@pytest.mark.parametrize("aggregator", ["mean", "upgrad"])
@pytest.mark.parametrize("name", TINY)
def test_every_engine_computes_the_same_update(name: str, aggregator: str) -> None:
    pytest.importorskip("torchjd")
    updates = {}
    for engine in ENGINES:
        torch.manual_seed(0)
        work = TINY[name].build()
        step = make_step(engine, work, aggregator)
        if engine == "loop" and not work.has_tasks:
            assert step is None
            continue
        step()
        shared = work.model.trunk if work.has_tasks else work.model
        updates[engine] = torch.cat([p.grad.flatten() for p in shared.parameters()])
    plain = updates.pop("plain")
    reference = plain if aggregator == "mean" else updates["autojac"]
    for engine, update in updates.items():
        # TorchJD normalises and regularises a little differently.
        torch.testing.assert_close(update, reference, rtol=1e-2, atol=1e-4, msg=engine)


def test_without_torchjd_its_engines_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert make_step("autogram", TINY["tiny-instances"].build(), "mean") is None
    row = engines.timed(TINY["tiny-instances"], 2, "wall")
    assert "autogram" not in row
    assert row["mark"] == "yes"
    assert "loop" not in row  # there are no tasks to loop over


def test_tasks_are_compared_with_a_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    row = engines.timed(TINY["tiny-tasks"], 2, "wall", seconds=0.0)
    assert row["loop"] > 0
    assert row["loop_mark"] in ("yes", "missed")
    monkeypatch.setattr(engines, "_LOOP_MUST", 0.0)
    assert engines.timed(TINY["tiny-tasks"], 1, "wall", seconds=0.0)["loop_mark"] == "missed"


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_the_command_writes_table_and_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = {
        "batch": {"MLP": lambda b: networks.mlp(b, 8)},
        "depth": {"MLP": lambda d: networks.mlp(4, 8, d)},
    }
    monkeypatch.setattr(_growth, "_LINES", line)
    monkeypatch.setattr(_growth, "_SIZES", {"batch": (1, 2), "depth": (1, 2)})
    monkeypatch.setattr(engines, "peak_memory", lambda case, engine, threads: Peak(15.0, 10.0))
    before = torch.get_num_threads()
    engines.engines(threads=1, repeats=2, memory=True, growth=True, output=tmp_path)
    assert torch.get_num_threads() == before
    rows = {row["case"]: row for row in json.loads((tmp_path / "engines.json").read_text())["rows"]}
    assert rows["tiny-instances"]["mark"] == "yes"
    assert rows["tiny-instances"]["memory_mark"] == "yes"
    assert rows["tiny-tasks"]["mark"] == "missed"
    assert rows["tiny-tasks"]["m"] == 2
    assert "autojac" not in rows["tiny-tasks"]
    shown = capsys.readouterr().out
    assert "Slower than it must be: tiny-tasks" in shown
    assert "takes minutes" in shown
    assert (tmp_path / "engines_growth.png").stat().st_size > 1000
    assert len(json.loads((tmp_path / "engines_growth.json").read_text())["rows"]) == 4


def test_memory_that_misses_its_target_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks: dict[str, Peak | None] = {
        "plain": Peak(10.0, 10.0),
        "ours": Peak(36.0, 24.0),
        "ours_low": Peak(99.0, 12.0),
        "autogram": Peak(23.0, 23.0),
    }
    monkeypatch.setattr(engines, "peak_memory", lambda case, engine, threads: peaks[engine])
    case = TINY["tiny-instances"]
    assert engines.remembered(case, 1)["memory_mark"] == "missed"  # autogram needs less
    peaks["autogram"] = None
    row = engines.remembered(case, 1)
    assert row["memory_mark"] == "yes"
    assert (row["ours_memory"], row["ours_first_memory"]) == (2.4, 3.6)
    peaks["ours"] = Peak(37.0, 24.0)
    assert engines.remembered(case, 1)["memory_mark"] == "missed"  # the first steps need too much
    peaks["ours"] = Peak(26.0, 26.0)
    assert engines.remembered(case, 1)["memory_mark"] == "missed"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_the_peak_of_a_process_is_measured() -> None:
    peak = _memory.peak_memory("mnist-mean", "plain", threads=1)
    assert peak is not None
    # 0.5 MB of gradients, and the activations of the first convolution alone are 2.8 MB.
    assert 3 < peak.later < 100
    assert peak.first == pytest.approx(peak.later, rel=0.5)  # nothing is tuned in a plain step


def test_a_process_that_fails_is_an_error_unless_it_is_an_opponent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "Traceback\nValueError: too large")
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: failed)
    monkeypatch.setattr(_memory, "_STATUS", Path(__file__))  # exists on every system
    assert _memory.peak_memory("mnist-mean", "autogram", threads=1) is None
    with pytest.raises(SetupError, match=r"of mnist-mean ours 1 must run .*too large"):
        _memory.peak_memory("mnist-mean", "ours", threads=1)


def test_memory_needs_linux(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_memory, "_STATUS", tmp_path / "status")
    with pytest.raises(SetupError, match=r"must read /proc/self/status, which only Linux has"):
        _memory.peak_memory("mnist-mean", "ours", threads=1)


def test_an_unknown_case_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"`cases` must be one of .* Did you mean 'mlp-64'"):
        engines.engines(cases=["mlp-65"], output=tmp_path)


def test_no_threads_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="`threads` must be at least 1, got 0"):
        engines.engines(threads=0, output=tmp_path)


def test_curves_without_points_are_left_out(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "new" / "growth.png"
    _growth.plot([Point("batch", "CNN of CIFAR-10", 16, 1.0, 1.1)], path)
    assert path.exists()

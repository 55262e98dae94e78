"""`bench all`: one zip with every table, and a device that is not there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch

from examples.lab import device
from examples.lab.__main__ import COMMANDS, main
from examples.lab.bench import all as module
from examples.lab.bench.fit import fit
from examples.lab.bench.gallery import gallery
from examples.lab.bench.optimizers import optimizers
from examples.lab.bench.scale import scale
from examples.lab.bench.weights import weights
from examples.lab.report import Report
from examples.lab.studies.speed import speed
from lightning_jd.errors import ArgumentError, UnknownNameError
from tests.examples.lab.bench.toys import dying, failing, quick


def interrupted(**_: Any) -> None:
    raise KeyboardInterrupt


BENCHES = {"failing": failing, "quick": quick, "dying": dying}


@pytest.mark.slow
def test_a_bundle_has_all_tables_and_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "BENCHES", BENCHES)
    module.bench_all(device="cpu", repeats=1, output=tmp_path)
    told = capfd.readouterr()
    assert "2 of 3: quick" in told.err
    assert "failing failed: RuntimeError: out of memory" in told.err
    assert "quick.md" in told.out
    with ZipFile(tmp_path / "cpu.zip") as bundle:
        names = set(bundle.namelist())
        assert {"bundle.json", "bundle.md", "quick.json", "quick.md"} <= names
        assert {"failing_failed.txt", "dying_failed.txt"} <= names
        assert b"out of memory" in bundle.read("failing_failed.txt")
        assert b"exit code -9" in bundle.read("dying_failed.txt")
    report = Report.read(tmp_path / "cpu" / "bundle.json")
    assert [row["state"] for row in report.rows] == ["failed", "measured", "failed"]
    assert report.environment["device"] == "cpu"
    assert Report.read(tmp_path / "cpu" / "quick.json").environment["device"] == "cpu"


@pytest.mark.slow
def test_a_bundle_goes_on_where_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "BENCHES", {"quick": quick, "failing": failing})
    attempt = module.apart

    def until_failing(function: Any, **arguments: Any) -> Any:
        return interrupted() if function is failing else attempt(function, **arguments)

    monkeypatch.setattr(module, "apart", until_failing)
    command = ["bench", "all", "--device", "cpu", "--repeats", "1", "--output", str(tmp_path)]
    assert main(command) == 130
    assert "run the same command to continue" in capfd.readouterr().err
    monkeypatch.setattr(module, "apart", attempt)
    monkeypatch.setattr(module, "BENCHES", {"quick": quick})  # the other one works now
    (tmp_path / "cpu" / "quick_failed.txt").write_text("kept, because nothing is done again")
    assert main(command) == 0
    assert "1 of 1: quick, which is finished" in capfd.readouterr().err
    calls = tmp_path / "cpu" / "calls"
    assert calls.read_text() == "quick "
    module.bench_all(device="cpu", repeats=2, output=tmp_path)  # another measurement
    assert calls.read_text() == "quick quick "
    assert not (tmp_path / "cpu" / "quick_failed.txt").exists()


def test_some_of_the_benchmarks_are_chosen_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="enginse"):
        module.bench_all(device="cpu", only=["enginse"], output=tmp_path)


def test_every_benchmark_of_a_bundle_takes_a_device() -> None:
    for bench in module.BENCHES.values():
        assert "device" in bench.__annotations__


def test_every_benchmark_that_runs_a_step_is_in_the_bundle() -> None:
    _, commands = COMMANDS["bench"]
    assert set(module.BENCHES) == set(commands) - {"all"}


@pytest.mark.parametrize(
    ("bench", "arguments"),
    [
        (weights, {"sizes": [4], "families": ["gaussian"], "methods": ["upgrad"], "m1024": False}),
        (fit, {}),
        (optimizers, {}),
        (gallery, {"only": ["gcn"]}),
        (scale, {}),
        (speed, {}),
    ],
)
def test_a_clock_that_does_not_see_the_device_ends_a_command_before_its_first_line(
    bench: Callable[..., None],
    arguments: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device, "usable", torch.device)  # a device without numbers is enough
    with pytest.raises(ArgumentError, match="`clock` must be 'wall' on a device"):
        bench(device="meta", clock="cpu", output=tmp_path, **arguments)

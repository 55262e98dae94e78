"""`lightning-jd bench all`: one zip with every table, and a device that is not there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch

from lightning_jd.cli import COMMANDS
from lightning_jd.errors import ArgumentError
from lightning_jd.lab import device
from lightning_jd.lab.bench import all as module
from lightning_jd.lab.bench.fit import fit
from lightning_jd.lab.bench.gallery import gallery
from lightning_jd.lab.bench.metrics import metrics
from lightning_jd.lab.bench.optimizers import optimizers
from lightning_jd.lab.bench.scale import scale
from lightning_jd.lab.bench.weights import weights
from lightning_jd.lab.report import Report
from lightning_jd.lab.studies.speed import speed


def failing(**_: Any) -> None:
    raise RuntimeError("out of memory")


def test_a_bundle_has_all_tables_and_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BENCHES", {"metrics": metrics, "engines": failing})
    module.bench_all(device="cpu", repeats=1, output=tmp_path)
    with ZipFile(tmp_path / "cpu.zip") as bundle:
        assert {"metrics.json", "metrics.md", "engines_failed.txt"} <= set(bundle.namelist())
        assert b"out of memory" in bundle.read("engines_failed.txt")
    assert Report.read(tmp_path / "cpu" / "metrics.json").environment["device"] == "cpu"


def test_every_benchmark_of_a_bundle_takes_a_device() -> None:
    for bench in module.BENCHES.values():
        assert "device" in bench.__annotations__


def test_every_benchmark_that_runs_a_step_is_in_the_bundle() -> None:
    alone = {"all", "ddp", "roofline"}  # several processes, and no measurement
    _, commands = COMMANDS["bench"]
    assert set(module.BENCHES) == set(commands) - alone


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

"""Studies and benchmarks on the device: models and data are there, and runs carry its name."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.lab import trainer
from examples.lab.bench import fit as fit_module
from examples.lab.bench import optimizers as optimizers_module
from examples.lab.bench.ddp import Case, check_devices, measure_here
from examples.lab.bench.engines import engines
from examples.lab.bench.fit import fit
from examples.lab.bench.gallery import gallery
from examples.lab.bench.launches import launches
from examples.lab.bench.methods import methods
from examples.lab.bench.metrics import metrics
from examples.lab.bench.optimizers import optimizers
from examples.lab.bench.weights import weights
from examples.lab.crew import hired
from examples.lab.data import load
from examples.lab.data.multitask import Multitask
from examples.lab.device import here, measured_on, name_of_device
from examples.lab.report import Report
from examples.lab.studies import mtl as mtl_module
from examples.lab.studies import trajectories as trajectories_module
from examples.lab.studies._momentum import MomentumRun
from examples.lab.studies._momentum import train as train_with_momentum
from examples.lab.studies._settings import Setting
from examples.lab.studies._training import train
from examples.lab.studies.iwrm import iwrm
from examples.lab.studies.mtl import mtl
from examples.lab.studies.multitask._search import Budget
from examples.lab.studies.multitask._training import train as train_tasks
from examples.lab.studies.regularisation import regularisation
from examples.lab.studies.speed import speed
from examples.lab.studies.trajectories import SCENES, follow, trajectories
from lightning_jd.errors import ArgumentError
from tests.examples.lab.bench.test_ddp import small, small_tasks
from tests.examples.lab.conftest import batch, folder
from tests.examples.lab.studies.test_mtl import TRIAL, data
from tests.examples.lab.studies.test_training import RUN, Batch
from tests.pretended import DEVICE, operations
from tests.pretended.lightning import trainer_on_device
from tests.pretended.processes import run_on_two_devices

__all__ = ["batch", "data", "folder"]
NAME = "pretended: pretended accelerator"


@pytest.fixture(autouse=True)
def known_to_lightning(monkeypatch: pytest.MonkeyPatch) -> None:
    original = trainer.Trainer

    def chosen(**arguments: Any) -> Any:
        is_cpu = arguments["accelerator"] == "cpu"
        return original(**arguments) if is_cpu else trainer_on_device(**arguments)

    monkeypatch.setattr(trainer, "Trainer", chosen)


@pytest.fixture
def on_device() -> Iterator[None]:
    with measured_on(DEVICE.type):
        yield


def close(found: list[float], expected: list[float]) -> bool:
    return found == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_a_run_of_images_is_that_of_the_cpu(batch: Batch) -> None:
    for aggregator, reg in (("upgrad", 1e-4), ("mean", None), ("graddrop", None)):
        run = replace(RUN, aggregator=aggregator, reg=reg)
        expected = train(run, "mnist", *batch)
        with measured_on(DEVICE.type), operations() as asked:
            found = train(run, "mnist", *batch)
        assert {"convolution", "convolution_backward"} <= {each.name for each in asked}
        assert found.finished
        assert found.losses[0] == pytest.approx(expected.losses[0], rel=1e-5)
        if aggregator != "graddrop":  # which draws its masks on the device
            assert close(found.losses, expected.losses)
            assert close(found.similarities, expected.similarities)


def test_a_run_of_tasks_is_that_of_the_cpu(data: Multitask) -> None:
    for trial in (replace(TRIAL, method="upgrad"), replace(TRIAL, method="single", task="left")):
        expected = train_tasks(trial, data)
        with measured_on(DEVICE.type), operations() as asked:
            found = train_tasks(trial, data)
        assert {"convolution", "convolution_backward"} <= {each.name for each in asked}
        assert found.score == pytest.approx(expected.score, abs=0.05)
        assert found.test.keys() == expected.test.keys()
        assert found.seconds_per_step > 0


def test_a_run_with_momentum_is_that_of_the_cpu(folder: Path) -> None:
    split = load("mnist", folder)
    for aggregator in ("sum", "upgrad"):
        run = MomentumRun("mnist", "SGD, momentum 0.9", aggregator, 0.05, 1, 1, size=32, batch=8)
        expected = train_with_momentum(run, split)
        with measured_on(DEVICE.type), operations() as asked:
            found = train_with_momentum(run, split)
        assert {"convolution", "convolution_backward"} <= {each.name for each in asked}
        assert close(found.losses, expected.losses)
        assert found.conflict == expected.conflict


@pytest.mark.parametrize("method", ["upgrad", "pcgrad", "nashmtl", "mgda"])
def test_a_path_is_that_of_the_cpu(method: str) -> None:
    scene = replace(SCENES[1], steps=5, starts=SCENES[1].starts[1:3])
    setting = Setting(method, 0.0 if method == "upgrad" else None)
    expected = follow(scene, setting)
    with measured_on(DEVICE.type), operations() as asked:
        found = follow(scene, setting)
    assert len(asked) > scene.steps * len(scene.starts)
    torch.testing.assert_close(found.points, expected.points, rtol=1e-7, atol=1e-9)
    assert found.worst_cosine == pytest.approx(expected.worst_cosine, abs=1e-7)


def stored(path: Path, key: str) -> list[str]:
    return [json.loads(line)[key].get("device") for line in path.read_text().splitlines()]


def test_runs_of_two_devices_share_a_file_and_are_kept_apart(folder: Path) -> None:
    small_study = {"aggregators": ["mean"], "seeds": 1, "epochs": 1, "size": 16, "batch_size": 8}
    given: dict[str, Any] = {**small_study, "data": str(folder), "output": str(folder / "out")}
    iwrm(**given, workers=1)
    alone = stored(folder / "out" / "runs.jsonl", "run")
    steps = Report.read(folder / "out" / "iwrm.json").rows[0]["steps"]
    iwrm(**given, workers=1, device=DEVICE.type)
    both = stored(folder / "out" / "runs.jsonl", "run")
    assert set(alone) == {"cpu"}
    assert set(both[len(alone) :]) == {NAME}
    report = Report.read(folder / "out" / "iwrm.json")
    assert report.environment["device"] == NAME
    assert report.rows[0]["steps"] == pytest.approx(steps, rel=0.5)  # not those of both
    iwrm(**given, workers=1, device=DEVICE.type)
    assert stored(folder / "out" / "runs.jsonl", "run") == both
    text = (folder / "out" / "runs.jsonl").read_text().replace(', "device": "cpu"', "")
    (folder / "out" / "runs.jsonl").write_text(text)  # as before runs had a device
    iwrm(**given, workers=1)
    assert (folder / "out" / "runs.jsonl").read_text() == text


def test_the_regularisation_on_the_device(folder: Path) -> None:
    output = folder / "out"
    settings = {"regs": [1e-3], "seeds": 1, "epochs": 1, "size": 16, "halvings": 0}
    regularisation(data=str(folder), **settings, device=DEVICE.type, output=str(output))  # type: ignore[arg-type]
    assert set(stored(output / "runs.jsonl", "run")) == {NAME}
    assert Report.read(output / "regularisation.json").environment["device"] == NAME


def test_tasks_on_the_device(
    data: Multitask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mtl_module, "load_multitask", lambda dataset, folder: data)
    tiny = Budget(96, 1, 1, (0.0,), sweeps=False)
    monkeypatch.setattr(mtl_module, "budget_of", lambda name, dataset: tiny)
    settings = {"methods": ["upgrad", "equal"], "seeds": 1, "batch_size": 48, "workers": 1}
    mtl(**settings, device=DEVICE.type, output=str(tmp_path))  # type: ignore[arg-type]
    report = Report.read(tmp_path / "mtl.json")
    assert set(stored(tmp_path / "trials.jsonl", "trial")) == {NAME}
    assert report.environment["device"] == NAME
    assert "wall time" in report.notes[0]
    with pytest.raises(ArgumentError, match="needs the finished runs"):
        mtl(**settings, page=True, output=str(tmp_path))  # type: ignore[arg-type]


def test_paths_on_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenes = tuple(replace(scene, steps=4) for scene in SCENES)
    monkeypatch.setattr(trajectories_module, "SCENES", scenes)
    for device in ("cpu", DEVICE.type, DEVICE.type):
        trajectories(["mean"], device=device, output=str(tmp_path))
    lines = (tmp_path / "paths.jsonl").read_text().splitlines()
    assert [NAME in line for line in lines] == [False, False, True, True]


def test_an_epoch_on_the_device(tmp_path: Path) -> None:
    counts: dict[str, Any] = {"repeats": 1, "steps": 1, "threads": 1, "torchjd": False}
    speed(["svhn"], ["upgrad"], **counts, device=DEVICE.type, output=str(tmp_path))
    report = Report.read(tmp_path / "speed.json")
    assert report.environment["device"] == NAME
    assert NAME in (tmp_path / "rounds.jsonl").read_text()
    assert all(math.isfinite(float(row["svhn"] or 0)) for row in report.rows)


@pytest.mark.parametrize(
    ("bench", "arguments"),
    [
        (engines, {"cases": ["mlp-64"]}),
        (launches, {"cases": ["mlp"]}),
        (methods, {"tasks": [2]}),
        (metrics, {}),
        (weights, {"sizes": [4], "families": ["gaussian"], "methods": ["upgrad"], "m1024": False}),
        (optimizers, {}),
        (gallery, {"only": ["gcn", "clip"]}),
        (fit, {}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_benchmark_on_the_device(
    bench: Callable[..., None],
    arguments: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fit_module, "_WORK", {"tasks": small_tasks})
    monkeypatch.setattr(optimizers_module, "MODELS", {"small": [(4, 3)]})
    wall = {"clock": "wall"} if "clock" in signature(bench).parameters else {}
    with operations() as asked:
        bench(**arguments, **wall, repeats=1, device=DEVICE.type, output=tmp_path)
    assert asked
    report = Report.read(tmp_path / f"{bench.__name__}.json")
    assert report.rows
    assert all(row.get("mark") != "fails" for row in report.rows)
    assert report.environment["device"] == NAME


def telling() -> Callable[[], str]:
    return name_of_device  # to know this function, a process imports this file, hence the device


@pytest.mark.usefixtures("on_device")
def test_workers_are_on_the_device() -> None:
    with hired(2, telling) as asked:
        assert asked() == NAME


def test_processes_need_a_device_each() -> None:
    check_devices(DEVICE.type, 1)
    with pytest.raises(ArgumentError, match=r"`processes` must be at most 1 on 'pretended'.*got 2"):
        check_devices(DEVICE.type, 2)
    with pytest.raises(ArgumentError, match=r"must be a kind of device.*Write 'pretended'"):
        check_devices(str(DEVICE), 1)


def measure(rank: int, folder: Path) -> None:
    with measured_on(DEVICE.type):
        for case in (Case("instances", small), Case("tasks", small_tasks), Case("ranks", small)):
            found = measure_here(case, processes=2, repeats=1)
            assert found["computed_mb"] == found["measured_mb"]
            assert found["cpu_ratio"] is None
            assert here().type == DEVICE.type


def test_processes_are_measured_on_devices(tmp_path: Path) -> None:
    run_on_two_devices(measure, tmp_path)

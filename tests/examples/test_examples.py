"""The examples run, and what they claim holds (they assert it themselves)."""

import os
import runpy
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightning.pytorch.cli import LightningCLI

from lightning_jd.engines import Split
from lightning_jd.errors import ArgumentError
from lightning_jd.surfaces import JacobianDescent
from tests.helpers.lightning import QUIET, Regression

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two_tasks", "instance_wise", "gan"])
def test_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out


@pytest.mark.slow
def test_the_example_with_a_foreign_module(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # libraries warn about one another when they are imported
        pytest.importorskip("pytorch_forecasting", exc_type=ImportError)
        runpy.run_path(str(EXAMPLES / "forecasting.py"), run_name="__main__")
    assert "UPGrad: 0.0% of the targets harmed" in capsys.readouterr().out


#: Both processes end as soon as the script has: torch may abort while it takes down its threads.
LEAVE = "import atexit, os, sys; atexit.register(lambda: (sys.stdout.flush(), os._exit(0)))"


@pytest.mark.slow
def test_the_example_that_is_started_twice(tmp_path: Path) -> None:
    # A script of its own: Lightning starts the second process by running the same command again.
    (tmp_path / "sitecustomize.py").write_text(LEAVE)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(EXAMPLES / "two_processes.py")]
    environment = {**os.environ, "PYTHONPATH": path}
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert "Traceback" not in run.stderr, run.stderr
    assert len(run.stdout.splitlines()) == 6, run.stderr


def test_the_command_line_with_its_configuration(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    arguments = ["fit", "--config", str(EXAMPLES / "cli.yaml"), "--trainer.max_epochs", "1"]
    monkeypatch.setattr(sys, "argv", ["cli.py", *arguments])
    with caplog.at_level("INFO"):
        runpy.run_path(str(EXAMPLES / "cli.py"), run_name="__main__")
    assert any(
        "Jacobian descent with upgrad: 2 objectives, one per task" in line
        for line in caplog.messages
    )


# --- Everything can be written in YAML and on the command line of LightningCLI


EVERY_ARGUMENT = {
    "aggregator": {"name": "cagrad", "c": 0.4},
    "rows": "tasks",
    "params": ["net.0.*", "net.2.weight"],
    "groups": "layer",
    "accumulation": "step",
    "nonfinite": "skip",
    "memory": "low",
    "split": "terms",
}


class Model(Regression):
    def __init__(self, form: str = "tasks") -> None:
        super().__init__(form)


def command(tmp_path: Path, *more: str, **trainer: Any) -> LightningCLI:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"seed_everything": 0, "trainer": {**QUIET, **trainer}}))
    return LightningCLI(Model, args=["--config", str(config), *more], run=False)


def test_every_argument_of_the_callback(tmp_path: Path) -> None:
    entry = {"class_path": "lightning_jd.JacobianDescent", "init_args": EVERY_ARGUMENT}
    cli = command(tmp_path, callbacks=[entry])
    settings = next(c for c in cli.trainer.callbacks if isinstance(c, JacobianDescent)).settings
    assert settings.aggregator.c == 0.4
    assert settings.split == Split("terms")
    for name in EVERY_ARGUMENT.keys() - {"aggregator", "split"}:
        assert getattr(settings, name) == EVERY_ARGUMENT[name]


def test_every_argument_of_the_strategy(tmp_path: Path) -> None:
    entry = {"class_path": "lightning_jd.JDStrategy", "init_args": EVERY_ARGUMENT}
    settings = command(tmp_path, strategy=entry).trainer.strategy.jacobian_descent.settings
    assert settings.aggregator.c == 0.4
    assert settings.accumulation == "step"
    assert settings.split == Split("terms")


def test_on_the_command_line(tmp_path: Path) -> None:
    added = "--trainer.callbacks+=lightning_jd.JacobianDescent"
    cli = command(tmp_path, added, "--trainer.callbacks.aggregator", "mgda")
    callback = next(c for c in cli.trainer.callbacks if isinstance(c, JacobianDescent))
    assert callback.settings.aggregator.name == "mgda"
    assert command(tmp_path, "--trainer.strategy", "jd").trainer.strategy.strategy_name == "jd"


@pytest.mark.parametrize("name", ["rows", "accumulation", "nonfinite", "memory"])
def test_a_wrong_value_is_refused_with_those_that_exist(name: str) -> None:
    with pytest.raises(ArgumentError, match=f"`{name}` must be one of .*, got 'nonsense'"):
        JacobianDescent(**{name: "nonsense"})

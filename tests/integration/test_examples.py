"""The examples run, and what they claim holds (they assert it themselves)."""

import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

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


@pytest.mark.slow
def test_the_example_that_is_started_twice() -> None:
    # A script of its own: Lightning starts the second process by running the same command again.
    command = [sys.executable, str(EXAMPLES / "two_processes.py")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.splitlines()) == 6


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

"""The study of the regularisation: on tiny files of MNIST's format, end to end."""

import json
from pathlib import Path
from typing import Any

import pytest

from examples.lab.studies import regularisation as module
from examples.lab.studies._run import Outcome, Run
from examples.lab.studies.regularisation import regularisation

RUN = Run("mnist", "upgrad", 1e-4, 0.05, seed=1, epochs=2, size=16, batch=8)


def small(folder: Path, **arguments: Any) -> Path:
    settings = {"regs": [1e-3], "seeds": 1, "epochs": 1, "size": 32, "halvings": 0}
    regularisation(data=str(folder), **(settings | arguments), output=str(folder / "out"))
    return folder / "out"


@pytest.mark.slow
def test_the_command_writes_table_figure_and_runs_and_resumes(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = small(folder)
    report = json.loads((output / "regularisation.json").read_text())
    assert [row["setting"] for row in report["rows"]] == ["mean", "reg 1e-3"]
    assert "torch" in report["environment"]
    assert (output / "regularisation.png").read_bytes().startswith(b"\x89PNG")
    assert "area" in capsys.readouterr().out
    runs = (output / "runs.jsonl").read_text()

    def must_not_run(*_: object) -> Outcome:
        raise AssertionError("a finished run was repeated")

    monkeypatch.setattr(module, "train", must_not_run)
    small(folder)
    assert (output / "runs.jsonl").read_text() == runs

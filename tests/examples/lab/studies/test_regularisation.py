"""The study of the regularisation: on tiny files of MNIST's format, end to end."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from examples.lab.studies import regularisation as module
from examples.lab.studies._run import Outcome, Run
from examples.lab.studies._store import stored_runs
from examples.lab.studies.regularisation import regularisation
from lightning_jd.errors import ArgumentError, MissingDependencyError

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


def test_an_interrupted_study_keeps_what_is_finished(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished: list[Run] = []

    def fake(run: Run, *_: object) -> Outcome:
        if len(finished) == 3:
            raise KeyboardInterrupt
        finished.append(run)
        return Outcome([run.lr], [1.0], [1.0], [0.0], [0.0])

    monkeypatch.setattr(module, "train", fake)
    with pytest.raises(KeyboardInterrupt):
        small(folder)
    store = stored_runs(folder / "out" / "runs.jsonl")
    assert len(store) == 3
    assert all(run in store for run in finished)


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    outcome = Outcome([1.0], [1.0], [1.0], [0.0], [0.0])
    stored_runs(path).add(RUN, outcome)
    path.write_text(path.read_text() + '{"run": {"datas')
    store = stored_runs(path)
    assert len(store) == 1
    other = Run("mnist", "mean", None, 0.1, seed=1, epochs=1)
    store.add(other, outcome)
    assert stored_runs(path)[other] == outcome


def test_a_diverged_run_survives_the_file(tmp_path: Path) -> None:
    stored_runs(tmp_path / "runs.jsonl").add(RUN, Outcome([], [], [], [], [], "diverged"))
    assert stored_runs(tmp_path / "runs.jsonl")[RUN].area == float("inf")


def test_a_foreign_file_is_not_taken_for_results(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text('{"something": "else"}\n')
    with pytest.raises(ArgumentError, match=r"line 1 of .*runs.jsonl is not one .*another folder"):
        stored_runs(path)


@pytest.mark.parametrize("arguments", [{"seeds": 0}, {"regs": []}])
def test_nothing_to_do_is_refused(arguments: dict[str, Any], folder: Path) -> None:
    with pytest.raises(ArgumentError, match="`seeds` and `regs` must not be zero or empty"):
        small(folder, **arguments)


def test_without_matplotlib_the_extra_is_named_before_the_work(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'lightning-jd\[plot\]'"):
        small(folder)
    assert not (folder / "out").exists()


def test_diverged_settings_are_drawn_and_tabulated(tmp_path: Path) -> None:
    diverged = Outcome([], [], [], [], [], "diverged")
    fine = Outcome([2.0, 1.0], [1.0, 1.0], [1.0, 3.0], [0.0, -0.1], [0.0, 0.5])
    runs = [(RUN, diverged), (RUN, diverged)]
    row = module._row(runs)
    assert (row["area"], row["error"], row["diverged"]) == (None, None, 2)
    path = module.draw({0.0: runs, None: [(RUN, fine)]}, "title", tmp_path / "figure.png")
    assert path.read_bytes().startswith(b"\x89PNG")

"""`bench scale` on a tiny model; nothing here is a measurement."""

from pathlib import Path

import pytest

from examples.lab.bench import scale as module
from examples.lab.bench._cases import SCALE, Case
from examples.lab.bench._memory import Peak
from examples.lab.bench.scale import scale, timed_here
from examples.lab.report import Report
from examples.lab.work.language import language_model


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    def build() -> object:
        return language_model(4, 6, vocabulary=11, width=8, layers=1, heads=2, positions=6)

    monkeypatch.setitem(SCALE, "gpt2-small", Case("gpt2-small", build, "mean", 1e6))
    monkeypatch.setattr(module, "_FIRST_MUST", 1e6)
    monkeypatch.setattr(
        module, "answer_of", lambda _, words: timed_here(words[0], "cpu", int(words[3]))
    )


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(("ours", "mark"), [(12.0, "yes"), (13.0, "missed")])
def test_the_command_writes_its_table(
    ours: float, mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rich")
    peaks = {"plain": Peak(10.0, 10.0), "ours": Peak(30.0, ours)}
    monkeypatch.setattr(module, "peak_memory", lambda case, engine, threads: peaks[engine])
    scale(threads=1, repeats=1, output=tmp_path)
    (row,) = Report.read(tmp_path / "scale.json").rows
    assert row["mark"] == mark
    assert row["m"] == 4
    assert row["ours_first_memory"] == 3.0
    assert row["first"] > 0

"""`bench all`: one zip with every table, and a device that is not there."""

from pathlib import Path
from zipfile import ZipFile

import pytest

from examples.lab.__main__ import COMMANDS
from examples.lab.bench import all as module
from examples.lab.report import Report
from tests.examples.lab.bench.toys import dying, failing, quick

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


def test_every_benchmark_that_runs_a_step_is_in_the_bundle() -> None:
    _, commands = COMMANDS["bench"]
    assert set(module.BENCHES) == set(commands) - {"all", "exactness"}

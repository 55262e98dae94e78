"""The benchmark of the methods: every method has a cost, and a balancer that of a plain step."""

from pathlib import Path

import pytest

from examples.lab.bench.methods import methods
from examples.lab.report import Report


@pytest.mark.slow
def test_the_command_writes_its_table(tmp_path: Path) -> None:
    pytest.importorskip("rich")
    methods(threads=1, tasks=[2], repeats=1, output=tmp_path)
    report = Report.read(tmp_path / "methods.json")
    assert {row["method"] for row in report.rows} >= {"upgrad", "uw"}

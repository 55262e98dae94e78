"""The benchmark of the methods: every method has a cost, and a balancer that of a plain step."""

from pathlib import Path

import pytest

from examples.lab.bench.methods import measure, methods
from examples.lab.report import Report
from lightning_jd.aggregators import available
from lightning_jd.errors import ArgumentError


@pytest.mark.slow
def test_every_method_has_a_cost() -> None:
    found = measure(tasks=3, repeats=3, clock="cpu")
    assert set(found) >= set(available())
    assert all(cost > 0 for cost in found.values())
    assert found["equal"] < found["mgda"]  # no Jacobian


@pytest.mark.slow
def test_the_command_writes_its_table(tmp_path: Path) -> None:
    pytest.importorskip("rich")
    methods(threads=1, tasks=[2], repeats=1, output=tmp_path)
    report = Report.read(tmp_path / "methods.json")
    assert {row["method"] for row in report.rows} >= {"upgrad", "uw"}


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ArgumentError, match="`threads` must be at least 1, got 0"):
        methods(threads=0)

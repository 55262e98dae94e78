"""The benchmark of the metrics: it runs, and every line has a share of the plain step."""

from pathlib import Path

import pytest

from examples.lab.bench.metrics import measure, metrics
from examples.lab.report import Report
from lightning_jd.errors import ArgumentError


def test_every_line_has_a_share() -> None:
    plain, *looks = measure(batch_size=4, repeats=2, clock="cpu")
    assert plain["microseconds"] > 0
    assert len(looks) == 4
    assert all(look["lower"] <= look["share"] <= look["upper"] for look in looks)


def test_the_command_writes_its_table(tmp_path: Path) -> None:
    pytest.importorskip("rich")
    metrics(threads=1, batch_size=4, repeats=1, output=tmp_path)
    assert Report.read(tmp_path / "metrics.json").name == "metrics"
    assert "% of a plain step" in (tmp_path / "metrics.md").read_text(encoding="utf-8")


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ArgumentError, match="`threads` must be at least 1, got 0"):
        metrics(threads=0)

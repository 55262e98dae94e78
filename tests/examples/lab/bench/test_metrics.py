"""The benchmark of the metrics: it runs, and every line has a share of the plain step."""

from pathlib import Path

import pytest

from examples.lab.bench.metrics import metrics
from examples.lab.report import Report


def test_the_command_writes_its_table(tmp_path: Path) -> None:
    pytest.importorskip("rich")
    metrics(threads=1, batch_size=4, repeats=1, output=tmp_path)
    assert Report.read(tmp_path / "metrics.json").name == "metrics"
    assert "% of a plain step" in (tmp_path / "metrics.md").read_text(encoding="utf-8")

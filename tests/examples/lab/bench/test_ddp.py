"""The benchmark of several processes: what it computes is what it measures. Nothing is timed."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from examples.lab.bench import ddp as module
from examples.lab.bench._layers import layers_of
from examples.lab.bench._traffic import traffic_table
from examples.lab.bench._volume import Head, Matrix
from examples.lab.bench.ddp import Case, ddp
from examples.lab.work.networks import Work, mlp, mlp_tasks


def small() -> Work:
    return mlp(4, width=8, inputs=6)


def small_tasks() -> Work:
    return mlp_tasks(2, batch=4, width=8)


def test_layers_are_sizes() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 5, bias=False))
    x = torch.zeros(6, 1, 4, 4)
    assert layers_of(model, x, "instances") == [Matrix(4, 9, 2), 2, Matrix(1, 8, 5)]
    assert layers_of(model, x, "tasks") == [18, 2, Matrix(6, 8, 5)]
    work = small_tasks()
    assert layers_of(work.model, work.x, "tasks")[2:] == [Head(80), Head(10)] * 2


@pytest.mark.slow
def test_the_table_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = {"instances": Case("instances", small), "tasks": Case("tasks", small_tasks)}
    monkeypatch.setattr(module, "CASES", cases)
    ddp(repeats=1, output=tmp_path)
    rows = json.loads((tmp_path / "ddp.json").read_text())["rows"]
    assert [row["work"] for row in rows] == ["instances", "tasks"]
    for row in rows:
        assert row["computed_mb"] == row["measured_mb"] > 0
        assert row["at_8_mb"] > row["computed_mb"]


def test_the_table_in_the_docs_is_what_the_function_says() -> None:
    page = (Path(__file__).parents[4] / "docs/distributed.md").read_text()
    shown = page.partition("<!-- traffic -->\n")[2].partition("\n<!-- end of traffic -->")[0]
    assert shown == traffic_table(), "print(traffic_table()) and paste it into docs/distributed.md"

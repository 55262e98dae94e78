"""The benchmark of the optimizers: every column is measured, and conflict is conflict."""

from pathlib import Path

import pytest
import torch

from examples.lab.bench import optimizers as module
from examples.lab.bench.optimizers import optimizers
from examples.lab.report import Report
from lightning_jd import optim


def test_the_command_writes_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr(module, "MODELS", {"small": [(4, 3), (3,)]})
    optimizers(repeats=2, output=tmp_path)
    rows = Report.read(tmp_path / "optimizers.json").rows
    assert [row["optimizer"] for row in rows] == ["SGD", "SGD, Nesterov", "Adam", "AdamW", "NAdam"]
    assert all(float(row[key] or 0) > 0 for row in rows for key in ("sum", "agree", "conflict"))
    assert rows[0]["fused"] is not None
    assert "fused" not in rows[-1]


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_gradients_are_turned_against_the_momentum(name: str) -> None:
    arguments = {"momentum": 0.9} if name == "SGD" else {}
    params = module._parameters([(8, 8), (8,)])
    optimizer = getattr(optim, name)(params, lr=1e-3, **arguments)
    for _ in range(6):
        optimizer.step()
        module._turn_against_momentum(optimizer)
        for p, state in optimizer.state.items():
            momentum = state["momentum_buffer" if name == "SGD" else "exp_avg"]
            assert float(torch.sum(momentum * p.grad)) < 0

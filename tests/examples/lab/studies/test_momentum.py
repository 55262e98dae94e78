"""The study of momentum: on tiny files of MNIST's format, end to end."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.lab.data import load, paper_subset
from examples.lab.studies import momentum as module
from examples.lab.studies._momentum import MomentumOutcome, MomentumRun, small_cnn, train
from examples.lab.studies.momentum import momentum


def small(folder: Path, **arguments: Any) -> Path:
    settings = {"seeds": 2, "epochs": 1, "size": 32}
    momentum(data=str(folder), **(settings | arguments), output=str(folder / "out"))
    return folder / "out"


def test_the_command_writes_table_figure_and_runs_and_resumes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fake(run: MomentumRun, *_: object) -> MomentumOutcome:
        faster = 0.5 if run.aggregator == "upgrad" else 1.0
        return MomentumOutcome([3.0, faster * (1 + abs(run.lr - 0.01))], 0.4, 0.9)

    monkeypatch.setattr(module, "train", fake)
    output = small(folder)
    rows = json.loads((output / "momentum.json").read_text())["rows"]
    assert [row["aggregator"] for row in rows] == ["sum", "upgrad"] * 4
    assert rows[1]["difference"] < 0
    assert rows[1]["final_lower"] == "2 of 2"
    assert rows[1]["lr"] == "0.01, 0.01"
    assert (output / "momentum.png").read_bytes().startswith(b"\x89PNG")

    def must_not_run(*_: object) -> MomentumOutcome:
        raise AssertionError("a finished run was repeated")

    monkeypatch.setattr(module, "train", must_not_run)
    small(folder)


def test_a_run_with_the_sum_is_a_run_of_torch(folder: Path) -> None:
    split = load("mnist", folder)
    run = MomentumRun("mnist", "SGD, momentum 0.9", "sum", 0.05, seed=1, epochs=2, size=32, batch=8)
    found = train(run, split)
    assert 0 <= found.conflict <= 1
    assert 0 <= found.accuracy <= 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = small_cnn(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    images, labels = paper_subset(split, 1, 40)
    order, losses = torch.Generator().manual_seed(1), []
    for chosen in [c for _ in range(2) for c in torch.randperm(32, generator=order).split(8)]:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert found.losses == pytest.approx(losses, rel=1e-3)

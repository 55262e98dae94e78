"""The study of large batches: on tiny files of MNIST's format, end to end."""

import json
from pathlib import Path
from typing import Any

import pytest

from examples.lab.studies import large_batches as module
from examples.lab.studies.large_batches import METHODS, large_batches
from lightning_jd.errors import ArgumentError


def small(folder: Path, **arguments: Any) -> Path:
    settings = {"batches": [8], "rates": [0.1], "seeds": 2, "steps": 2, "seconds": 1e-3}
    settings |= {"methods": ["mean", "parts of 32"], "dataset": "mnist"}
    large_batches(data=str(folder), **(settings | arguments), output=str(folder / "out"))
    return folder / "out"


def test_the_command_writes_a_table_and_does_not_repeat_runs(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WATCHED", 20)
    output = small(folder)
    rows = json.loads((output / "large_batches.json").read_text())["rows"]
    assert [row["method"] for row in rows] == [METHODS["mean"], METHODS["parts of 32"]]
    # Parts of more rows than there are hold all of them: UPGrad learns as the mean does, or faster.
    assert all(0 < row["steps_area"] < 4 and row["ms"] > 0 for row in rows)
    assert "learning rate" in capsys.readouterr().out
    monkeypatch.setattr(module, "_train", None)  # a finished run would call it
    small(folder)


def test_the_area_over_seconds_holds_each_loss_until_the_next_step() -> None:
    clock, losses = [0.0, 1.0, 3.0], [4.0, 2.0, 1.0]
    assert module._area(clock, losses, 4.0) == pytest.approx((4 + 2 * 2 + 1) / 4)
    assert module._area(clock, losses, 2.0) == pytest.approx((4 + 2) / 2)


def test_settings_must_be_known_and_positive(folder: Path) -> None:
    with pytest.raises(ArgumentError, match=r"`methods` must be among mean, upgrad, .*'adam'"):
        small(folder, methods=["adam"])
    with pytest.raises(ArgumentError, match="must be positive, got 0, 2"):
        small(folder, seeds=0)

"""The table of seconds per epoch: what it compares, and that it can be resumed."""

import json
from pathlib import Path
from typing import Any

import pytest

from examples.lab.clock import Timing
from examples.lab.studies import speed as module
from examples.lab.studies.speed import speed


def small(folder: Path, **arguments: Any) -> dict[str, Any]:
    settings = {"architectures": ["svhn"], "aggregators": ["upgrad", "nashmtl"]}
    counts = {"repeats": 1, "steps": 1, "threads": 1, "clock": "cpu"}
    speed(**(settings | counts | arguments), output=str(folder))
    return json.loads((folder / "speed.json").read_text())


@pytest.mark.slow
def test_methods_are_timed_beside_torchjd_and_the_paper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = small(tmp_path)
    rows = {row["method"]: row for row in report["rows"]}
    assert list(rows) == ["SGD", "UPGrad", "NashMTL"]
    assert rows["SGD"]["svhn"] == 1.0
    assert rows["UPGrad"]["svhn_paper"] == pytest.approx(1.80 / 0.79)
    seconds = rows["UPGrad"]["svhn_seconds"] / rows["SGD"]["svhn_seconds"]
    assert rows["UPGrad"]["svhn"] == pytest.approx(seconds)
    assert rows["UPGrad"]["svhn_torchjd"] > 0
    assert rows["UPGrad"]["mark"] in ("met", "missed")
    assert "mark" not in rows["NashMTL"]

    def must_not_time(*_: object) -> None:
        raise AssertionError("a finished architecture was timed again")

    monkeypatch.setattr(module, "in_turns", must_not_time)
    assert small(tmp_path)["rows"] == report["rows"]
    with pytest.raises(AssertionError, match="timed again"):
        small(tmp_path, steps=2)  # another measurement


def test_the_mark_is_that_of_the_slowest_architecture() -> None:
    def timings(upgrad: float) -> dict[str, Timing]:
        return {"SGD": Timing((1.0, 2.0)), "upgrad": Timing((upgrad, 2 * upgrad))}

    _, row = module._rows({"svhn": timings(1.2), "mnist": timings(1.39)}, ["upgrad"])
    assert row["mark"] == "met"
    _, row = module._rows({"svhn": timings(1.2), "mnist": timings(1.41)}, ["upgrad"])
    assert (row["mark"], row["mnist"]) == ("missed", 1.41)

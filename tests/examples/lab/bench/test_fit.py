"""The benchmark of the Trainer: it takes turns, and its table has a verdict. Nothing is timed."""

import json
from pathlib import Path

import pytest

from examples.lab.bench import fit as module
from examples.lab.bench._turns import _Turns
from examples.lab.bench.fit import fit
from examples.lab.work.networks import mlp, mlp_tasks

WORK = {
    "instances": lambda: mlp(4, width=8, inputs=6),
    "tasks": lambda: mlp_tasks(2, batch=4, width=8),
}
# Lightning uses a name that torch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")


def test_the_two_take_turns() -> None:
    ticks = iter(range(1000))
    order = ""

    def step() -> None:
        nonlocal order
        order += "loop "

    turns = _Turns(step, repeats=2, now=lambda: float(next(ticks)))
    for _ in turns:
        order += "fit "
    assert order == "loop fit " * len(turns)
    assert set(turns.loop) == set(turns.inside) == {1.0}


def test_the_table_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WORK", WORK)
    fit(threads=1, repeats=2, output=tmp_path)
    rows = json.loads((tmp_path / "fit.json").read_text())["rows"]
    assert [row["work"] for row in rows] == list(WORK)

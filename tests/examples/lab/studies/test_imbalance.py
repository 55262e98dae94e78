"""The study of imbalance: runs, scores, the choice of a rate, and the published table."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.lab.report import Report
from examples.lab.studies import imbalance as module
from examples.lab.studies._imbalance import (
    GUESS,
    TRACE,
    Outcome,
    Run,
    Scale,
    guess,
    stored,
)
from examples.lab.studies.imbalance import imbalance
from examples.lab.work.pairs import digit_pairs, mnist_pairs
from lightning_jd.errors import UnknownNameError

DOCS = Path(__file__).parents[4] / "docs"
RUNS = stored(DOCS / "imbalance" / "runs.jsonl")
PUBLISHED = dict.fromkeys(run.data for run, _ in RUNS.items())
SMALL: dict[str, Any] = {"factors": [1.0, 100.0], "rates": [1e-3], "seeds": 2, "epochs": 1}


def small(output: Path, **arguments: Any) -> Path:
    imbalance(["sum", TRACE], **(SMALL | {"size": 128, "workers": 1} | arguments),
              output=str(output))  # fmt: skip
    return output


def test_the_command_writes_table_and_figure_and_resumes(tmp_path: Path) -> None:
    output = small(tmp_path)
    rows = Report.read(output / "imbalance.json").rows
    assert {row["method"] for row in rows} == {"Sum", "UPGrad, trace"}
    assert (output / "imbalance.png").read_bytes().startswith(b"\x89PNG")
    runs = (output / "runs.jsonl").read_text()
    assert len(runs.splitlines()) == 1 + (3 + 4) * 2
    small(tmp_path, page=True)  # which trains nothing
    assert (output / "runs.jsonl").read_text() == runs


def test_scores_are_zero_for_a_guess_and_100_for_a_network_of_its_own() -> None:
    part = digit_pairs(100, slice(0, 50), seed=0)
    scale = Scale({"left": 90.0, "right": 80.0, "sum": 1.0}, guess(part))
    assert scale.scores(scale.single) == pytest.approx(dict.fromkeys(scale.single, 100.0))
    assert scale.scores(scale.guess) == pytest.approx(dict.fromkeys(scale.guess, 0.0))
    assert scale.worst({"left": 50.0, "right": 80.0, "sum": 1.0}) == pytest.approx(50.0)
    assert scale.worst({}) == 0.0
    # No constant has a smaller error than the guess.
    errors = [(part.sum - c).abs().mean() for c in torch.arange(0, 18.5, 0.5)]
    assert scale.guess["sum"] <= min(errors) + 1e-6


def test_the_rate_is_the_best_of_the_first_seeds_two_best_over_all_seeds() -> None:
    scores = {0: {1.0: 1.0, 2.0: 3.0, 3.0: 2.0}, 1: {2.0: 0.0, 3.0: 2.0}}
    run = Run("sum", 1.0, 1.0, 0)

    def trained(run: Run) -> Outcome:
        return Outcome({"left": scores[run.seed][run.lr]}, {})

    found = module._tuned(run, [1.0, 2.0, 3.0], 2, lambda o: o.validation["left"], trained)
    assert [(each.lr, each.seed) for each, _ in found] == [(3.0, 0), (3.0, 1)]


def test_multimnist_is_read_from_the_official_files(digits: Path, tmp_path: Path) -> None:
    output = small(tmp_path, data="multimnist", folder=str(digits), size=32)
    assert "32 pairs of digits (multimnist)" in (output / "imbalance.md").read_text()
    assert {run.data for run, _ in stored(output / "runs.jsonl").items()} == {"multimnist"}
    train, validation, test = mnist_pairs(32, digits)
    assert [len(part.left) for part in (train, validation, test)] == [32, 10, 16]
    assert torch.equal(train.sum, train.left + train.right)
    with pytest.raises(UnknownNameError, match="`data` must be"):
        small(tmp_path, data="svhn")


@pytest.mark.parametrize("data", PUBLISHED)
def test_the_page_shows_the_table_of_the_stored_runs(data: str, tmp_path: Path) -> None:
    shutil.copy(DOCS / "imbalance" / "runs.jsonl", tmp_path / "runs.jsonl")
    runs = [run for run, _ in RUNS.items() if run.data == data]
    names = list(dict.fromkeys(run.method for run in runs if not run.task and run.method != GUESS))
    imbalance(names, data=data, page=True, workers=1, output=str(tmp_path))
    lines = (tmp_path / "imbalance.md").read_text().split("## Environment")[0].splitlines()
    table = "\n".join(line for line in lines if line.startswith("|"))
    assert table in (DOCS / "imbalance.md").read_text()

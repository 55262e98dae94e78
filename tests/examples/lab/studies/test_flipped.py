"""The study of wrong labels: the command, what it keeps, and the area under the curve."""

import json
from pathlib import Path

import numpy as np
import pytest

from examples.lab.report import Report
from examples.lab.studies.flipped import SCORES, area, flipped
from lightning_jd.errors import ArgumentError, UnknownNameError


@pytest.mark.slow
def test_the_command_finds_wrong_labels_and_resumes(tmp_path: Path) -> None:
    def run() -> Report:
        flipped(datasets="digits", methods="mean", seeds=1, epochs=2, workers=1,
                output=str(tmp_path))  # fmt: skip
        return Report.read(tmp_path / "flipped.json")

    rows = {row["score"]: row for row in run().rows}
    assert set(rows) == set(SCORES)
    assert float(str(rows["loss"]["epoch 2"])) > 0.9
    stored = (tmp_path / "runs.jsonl").read_text()
    assert set(json.loads(stored)["found"]) == {f"{s}{e}" for s in SCORES for e in ("", " so far")}
    run()
    assert (tmp_path / "runs.jsonl").read_text() == stored


def test_the_area_is_the_share_of_pairs_in_the_right_order() -> None:
    draw = np.random.default_rng(0)
    scores, wrong = draw.integers(0, 6, 50).astype(float), draw.random(50) < 0.3
    pairs = [(a > b) + (a == b) / 2 for a in scores[wrong] for b in scores[~wrong]]
    assert area(scores, wrong) == pytest.approx(np.mean(pairs))


def test_arguments_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="`share` between 0 and 1, got 3 and 1"):
        flipped(share=1, output=str(tmp_path))
    with pytest.raises(UnknownNameError, match="got 'letters'"):
        flipped(datasets="letters", output=str(tmp_path))


def test_the_guide_shows_the_published_areas() -> None:
    docs = Path(__file__).parents[4] / "docs"
    page = (docs / "guides" / "per_example.md").read_text(encoding="utf-8")
    for row in Report.read(docs / "benchmarks" / "flipped.json").rows:
        cells = " | ".join(str(row[key]) for key in ("epoch 1", "epoch 5", "epoch 20", "so far"))
        assert row["method"] == "upgrad" or f" | {cells} |" in page

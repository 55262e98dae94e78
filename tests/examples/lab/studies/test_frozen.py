"""The study of frozen statistics: the command and its table, on both problems."""

from pathlib import Path

import pytest

from examples.lab.report import Report
from examples.lab.studies.frozen import SETTINGS, frozen
from lightning_jd.errors import ArgumentError, UnknownNameError


@pytest.mark.slow
@pytest.mark.parametrize(("problem", "needs"), [("digits", "sklearn"), ("chemprop", "chemprop")])
def test_every_setting_is_trained(problem: str, needs: str, tmp_path: Path) -> None:
    pytest.importorskip(needs, exc_type=ImportError)
    frozen(problem, seeds=1, epochs=1, size=64, output=str(tmp_path))
    rows = Report.read(tmp_path / "frozen.json").rows
    assert [(row["training"], row["norm"]) for row in rows] == list(SETTINGS)
    scores = [float(str(row["score"])) for row in rows]
    assert len(set(scores)) > 1
    assert min(scores) > (50 if problem == "digits" else 0)


def test_arguments_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="got 'letters'"):
        frozen("letters", output=str(tmp_path))
    with pytest.raises(ArgumentError, match="`size` at least 32, got 3 and 8"):
        frozen("digits", size=8, output=str(tmp_path))

"""Tables, files and the environment beside them."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from examples.lab.report import Report, Value


@pytest.fixture
def report() -> Report:
    rows = [
        {"family": "gaussian", "m": 8, "ratio": 3.14159, "met": True, "hidden": 0.123456789},
        {"family": "low_rank", "m": 32, "ratio": None, "met": False, "hidden": 1.0},
    ]
    columns = {"family": "family", "m": "m", "ratio": "times faster", "met": "met"}
    return Report("weights", "Ours against theirs", columns, rows, ["Wall time."])


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (2.5e-16, "2.5e-16"),
        (0.0321, "0.0321"),
        (8873.2, "8,873"),
        (3e23, "3e+23"),
        (float("inf"), "inf"),
        (7, "7"),
        ("low_rank", "low_rank"),
    ],
)
def test_numbers_are_shown_as_a_reader_wants_them(value: Value, shown: str) -> None:
    page = Report("x", "x", {"v": "v"}, [{"v": value}]).markdown()
    assert f"| {shown} |" in page


def test_json_keeps_every_value_and_reads_back(report: Report, tmp_path: Path) -> None:
    data, page = report.write(tmp_path / "new" / "folder")
    content = json.loads(data.read_text())
    assert content["rows"][0]["hidden"] == 0.123456789
    assert content["environment"]["torch"] == version("torch")
    assert page.read_text() == report.markdown()
    assert Report.read(data) == report

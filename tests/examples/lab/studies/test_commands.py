"""Every study on tiny data, end to end: table, figure, and what is stored is not computed again."""

import csv
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from examples.lab.report import Report
from examples.lab.studies import _workers
from examples.lab.studies import momentum as momentum_module
from examples.lab.studies import regularisation as regularisation_module
from examples.lab.studies import speed as speed_module
from examples.lab.studies import trajectories as trajectories_module
from examples.lab.studies._imbalance import GUESS, TRACE, stored
from examples.lab.studies._momentum import MomentumOutcome, MomentumRun
from examples.lab.studies.flipped import SCORES, flipped
from examples.lab.studies.imbalance import imbalance
from examples.lab.studies.iwrm import iwrm
from examples.lab.studies.momentum import momentum
from examples.lab.studies.regularisation import regularisation
from examples.lab.studies.speed import speed
from examples.lab.studies.trajectories import trajectories
from examples.lab.work.pairs import mnist_pairs
from lightning_jd.errors import ArgumentError, UnknownNameError

DOCS = Path(__file__).parents[4] / "docs"
RUNS = stored(DOCS / "imbalance" / "runs.jsonl")
PUBLISHED = dict.fromkeys(run.data for run, _ in RUNS.items())


@dataclass(frozen=True)
class Study:
    """A command, its tiny settings, and a column of its table.

    Attributes:
        trains: What must not be called when everything is stored.
    """

    command: Callable[..., None]
    settings: dict[str, Any]
    column: str
    values: set[str]
    trains: tuple[ModuleType, str] | None
    also: dict[str, Any] = field(default_factory=dict)
    figure: bool = True


METHODS = {"aggregators": ["mean", "upgrad", "graddrop"], "regs": [1e-3], "optimizer": "adam"}
STUDIES = {
    "flipped": Study(
        *(
            flipped,
            {"datasets": "digits", "methods": "mean", "seeds": 1, "epochs": 2, "workers": 1},
        ),
        *("score", set(SCORES), None),
        figure=False,
    ),
    "imbalance": Study(
        imbalance,
        {
            "data": "digits",
            "methods": ["sum", TRACE],
            "factors": [1.0, 100.0],
            "rates": [1e-3],
            "size": 128,
        }
        | {"epochs": 1, "workers": 1},
        *("method", {"Sum", "UPGrad, trace"}, None),
        also={"page": True},  # which trains nothing
    ),
    "iwrm": Study(  # with Adam, Mean is not SGD
        *(iwrm, {**METHODS, "epochs": 1, "size": 16, "batch_size": 8, "workers": 1}),
        *("method", {"Mean", "UPGrad, reg 1e-3", "GradDrop"}, (_workers, "train")),
    ),
    "momentum": Study(
        *(momentum, {"epochs": 1, "size": 32}),
        *("aggregator", {"sum", "upgrad"}, (momentum_module, "train")),
    ),
    "regularisation": Study(
        *(regularisation, {"regs": [1e-3], "epochs": 1, "size": 32, "halvings": 0}),
        *("setting", {"mean", "reg 1e-3"}, (regularisation_module, "train")),
    ),
    "speed": Study(
        speed,
        {"architectures": ["svhn"], "aggregators": ["upgrad", "nashmtl"], "repeats": 1, "steps": 1}
        | {"threads": 1, "clock": "cpu"},
        *("method", {"SGD", "UPGrad", "NashMTL"}, (speed_module, "in_turns")),
        figure=False,
    ),
    "trajectories": Study(
        *(trajectories, {"aggregators": ["mean", "upgrad"]}),
        *("method", {"Mean", "UPGrad"}, (trajectories_module, "follow")),
        figure=False,
    ),
}


def _faster_with_upgrad(run: MomentumRun, *_: object) -> MomentumOutcome:
    faster = 0.5 if run.aggregator == "upgrad" else 1.0
    return MomentumOutcome([3.0, faster * (1 + abs(run.lr - 0.01))], 0.4, 0.9)


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_a_study_writes_table_and_figure_and_resumes(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, output = STUDIES[name], folder / "out"
    if name == "momentum":
        monkeypatch.setattr(momentum_module, "train", _faster_with_upgrad)

    def rows(**more: Any) -> list[dict[str, Any]]:
        known = signature(study.command).parameters
        given = {"data": str(folder), "seeds": 2, "output": str(output), **study.settings, **more}
        study.command(**{key: value for key, value in given.items() if key in known})
        return Report.read(output / f"{name}.json").rows

    found = rows()
    assert {row[study.column] for row in found} == study.values
    if study.figure:
        assert (output / f"{name}.png").read_bytes().startswith(b"\x89PNG")

    def must_not_run(*_: object) -> None:
        raise AssertionError("what is stored was computed again")

    if study.trains is not None:
        monkeypatch.setattr(*study.trains, must_not_run)
    runs = output / "runs.jsonl"
    before = runs.read_text() if runs.exists() else ""
    assert rows(**study.also) == found
    assert not before or runs.read_text() == before
    CHECKS.get(name, lambda rows, output: None)(found, output)


def _of_flipped(rows: list[dict[str, Any]], output: Path) -> None:
    by_score = {row["score"]: row for row in rows}
    assert float(by_score["loss"]["epoch 2"]) > 0.9


def _of_iwrm(rows: list[dict[str, Any]], output: Path) -> None:
    areas = [row["area"] for row in rows]
    assert areas == sorted(areas)
    with (output / "curves.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert {line["method"] for line in lines} == {row["method"] for row in rows}
    assert {line["quantity"] for line in lines} == {"loss", "similarity"}


def _of_momentum(rows: list[dict[str, Any]], output: Path) -> None:
    assert rows[1]["difference"] < 0
    assert (rows[1]["final_lower"], rows[1]["lr"]) == ("2 of 2", "0.01, 0.01")


def _of_speed(rows: list[dict[str, Any]], output: Path) -> None:
    sgd, upgrad, nashmtl = rows
    assert sgd["svhn"] == 1.0
    assert upgrad["svhn_paper"] == pytest.approx(1.80 / 0.79)
    assert upgrad["svhn"] == pytest.approx(upgrad["svhn_seconds"] / sgd["svhn_seconds"])
    assert upgrad["svhn_torchjd"] > 0
    assert upgrad["mark"] in ("met", "missed")
    assert "mark" not in nashmtl


def _of_trajectories(rows: list[dict[str, Any]], output: Path) -> None:
    assert [row["reached"] for row in rows] == [4] * 4
    assert rows[2]["worst_cosine"] < 0 == rows[3]["worst_cosine"]
    assert (output / "cqf.png").read_bytes().startswith(b"\x89PNG")
    lines = (output / "trajectories.csv").read_text().splitlines()
    assert lines[1] == "ewq,Mean,0,0,3,-2,9,4,3.60555"


CHECKS: dict[str, Callable[[list[dict[str, Any]], Path], None]] = {
    "flipped": _of_flipped,
    "iwrm": _of_iwrm,
    "momentum": _of_momentum,
    "speed": _of_speed,
    "trajectories": _of_trajectories,
}


def test_arguments_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="`share` between 0 and 1, got 3 and 1"):
        flipped(share=1, output=str(tmp_path))
    with pytest.raises(UnknownNameError, match="got 'letters'"):
        flipped(datasets="letters", output=str(tmp_path))


@pytest.mark.parametrize("data", PUBLISHED)
def test_the_page_of_imbalance_shows_the_table_of_the_stored_runs(
    data: str, tmp_path: Path
) -> None:
    shutil.copy(DOCS / "imbalance" / "runs.jsonl", tmp_path / "runs.jsonl")
    runs = [run for run, _ in RUNS.items() if run.data == data]
    published = [run for run in runs if not run.task and run.method != GUESS]
    names = {run.method: {each.factor for each in published if each.method == run.method}
             for run in published}  # fmt: skip
    factors = sorted(set.intersection(*names.values()))  # of some, only one method was run
    settings: dict[str, Any] = {
        "factors": factors,
        "size": runs[0].size,
        "page": True,
        "workers": 1,
    }
    imbalance(list(names), data=data, **settings, output=str(tmp_path))
    lines = (tmp_path / "imbalance.md").read_text().split("## Environment")[0].splitlines()
    table = "\n".join(line for line in lines if line.startswith("|"))
    assert table in (DOCS / "imbalance.md").read_text()


def test_multimnist_is_read_from_the_official_files(digits: Path, tmp_path: Path) -> None:
    small = {**STUDIES["imbalance"].settings, "data": "multimnist", "size": 32, "seeds": 1}
    imbalance(**small, folder=str(digits), output=str(tmp_path))
    assert "32 pairs of multimnist" in (tmp_path / "imbalance.md").read_text()
    assert {run.data for run, _ in stored(tmp_path / "runs.jsonl").items()} == {"multimnist"}
    train, validation, test = mnist_pairs(32, digits)
    assert [len(part.left) for part in (train, validation, test)] == [32, 10, 16]
    assert torch.equal(train.sum, train.left + train.right)
    with pytest.raises(UnknownNameError, match="`data` must be"):
        imbalance(data="svhn", output=str(tmp_path))


def test_the_guide_shows_the_published_areas() -> None:
    page = (DOCS / "guides" / "per_example.md").read_text(encoding="utf-8")
    for row in Report.read(DOCS / "benchmarks" / "flipped.json").rows:
        cells = " | ".join(str(row[key]) for key in ("epoch 1", "epoch 5", "epoch 20", "so far"))
        assert row["method"] == "upgrad" or f" | {cells} |" in page

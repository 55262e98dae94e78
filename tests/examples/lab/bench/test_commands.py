"""Every benchmark runs on tiny work and writes its table; nothing here is a measurement."""

import json
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from examples.lab.bench import _growth
from examples.lab.bench import ddp as ddp_module
from examples.lab.bench import engines as engines_module
from examples.lab.bench import fit as fit_module
from examples.lab.bench import gallery as gallery_module
from examples.lab.bench import optimizers as optimizers_module
from examples.lab.bench import scale as scale_module
from examples.lab.bench._cases import CASES, SCALE, Case
from examples.lab.bench._memory import Peak
from examples.lab.bench.ddp import ddp
from examples.lab.bench.engines import engines
from examples.lab.bench.exactness import exactness
from examples.lab.bench.fit import fit
from examples.lab.bench.gallery import gallery
from examples.lab.bench.launches import launches
from examples.lab.bench.methods import methods
from examples.lab.bench.metrics import metrics
from examples.lab.bench.optimizers import optimizers
from examples.lab.bench.scale import scale, timed_here
from examples.lab.bench.weights import weights
from examples.lab.gallery import GALLERY, GalleryCase, Specimen
from examples.lab.gallery._case import three_targets
from examples.lab.report import Report
from examples.lab.work.language import language_model
from examples.lab.work.networks import Work, mlp, mlp_tasks
from lightning_jd.aggregators import available
from tests.examples.lab.bench.test_parts import regression

# Lightning uses a name that torch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")


class Broken(torch.autograd.Function):
    """Its backward fails."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, g: Tensor) -> Tensor:
        raise RuntimeError("no gradient today")


def broken(m: int) -> Specimen:
    specimen = regression(m)
    specimen.losses_of = lambda net, b: three_targets(Broken.apply(net(b["x"])), b["y"])
    return specimen


def small() -> Work:
    return mlp(4, width=8, inputs=6)


def small_tasks() -> Work:
    return mlp_tasks(2, batch=4, width=8)


ENGINES = [
    Case("tiny-instances", small, "mean", 1e6, 1e6),
    Case("tiny-tasks", small_tasks, "upgrad", 1e-6, skips=("autojac",)),
]
MODELS = [
    GalleryCase("fast", regression, 4, must=1e6, tasks_must=1e6),
    GalleryCase("slow", regression, 4, must=1e-6, mixes="nothing, but it is said"),
    GalleryCase("broken", broken, 4, must=1.0),
    GalleryCase("absent", regression, 4, requires=("no_such_package",)),
]


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace all lines of all tables by some that take no time."""
    for table, cases in ((CASES, ENGINES), (GALLERY, MODELS)):
        for name in list(table):
            monkeypatch.delitem(table, name)
        for case in cases:  # type: ignore[attr-defined]
            monkeypatch.setitem(table, case.name, case)
    monkeypatch.setattr(gallery_module, "compiled_ratio", lambda repeats, clock: (1.1, 5.0, 32))
    monkeypatch.setattr(engines_module, "peak_memory", lambda *_: Peak(15.0, 10.0))
    line = {
        "batch": {"MLP": lambda b: mlp(b, 8)},
        "depth": {"MLP": lambda d: mlp(4, 8, d)},
    }
    monkeypatch.setattr(_growth, "_LINES", line)
    monkeypatch.setattr(_growth, "_SIZES", {"batch": (1, 2), "depth": (1, 2)})
    cases = {
        "instances": ddp_module.Case("instances", small),
        "tasks": ddp_module.Case("tasks", small_tasks),
    }
    monkeypatch.setattr(ddp_module, "CASES", cases)
    monkeypatch.setattr(fit_module, "_WORK", {"instances": small, "tasks": small_tasks})
    monkeypatch.setattr(optimizers_module, "MODELS", {"small": [(4, 3), (3,)]})

    def build() -> object:
        return language_model(4, 6, vocabulary=11, width=8, layers=1, heads=2, positions=6)

    monkeypatch.setitem(SCALE, "gpt2-small", Case("gpt2-small", build, "mean", 1e6))
    peaks = {"plain": Peak(10.0, 10.0), "ours": Peak(30.0, 12.0)}
    monkeypatch.setattr(scale_module, "peak_memory", lambda case, engine, threads: peaks[engine])
    monkeypatch.setattr(
        scale_module, "answer_of", lambda _, words: timed_here(words[0], "cpu", int(words[3]))
    )


WEIGHTS = {"sizes": [2, 4], "families": ["gaussian"], "m1024": False}


@pytest.mark.parametrize(
    ("bench", "arguments", "column", "values"),
    [
        (fit, {}, "work", {"instances", "tasks"}),
        (launches, {"cases": ["mlp"], "torchjd": False}, "case", {"mlp"}),
        pytest.param(
            *(methods, {"tasks": [2]}, "method", set(available())), marks=pytest.mark.slow
        ),
        (metrics, {"batch_size": 4}, "share", set()),
        (optimizers, {}, "optimizer", {"SGD", "SGD, Nesterov", "Adam", "AdamW", "NAdam"}),
        (scale, {}, "m", {4}),
        (weights, WEIGHTS, "method", {"upgrad", "dualproj"}),
        pytest.param(ddp, {}, "work", {"instances", "tasks"}, marks=pytest.mark.slow),
        pytest.param(
            *(engines, {"memory": True, "growth": True, "busy": True}, "mark", {"yes", "missed"}),
            marks=pytest.mark.slow,
        ),
        (gallery, {}, "mark", {"yes", "missed", "fails"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_command_writes_its_table(
    bench: Callable[..., None], arguments: Any, column: str, values: set[Any], tmp_path: Path
) -> None:
    if "threads" in signature(bench).parameters:
        arguments = {**arguments, "threads": 1}
    before = torch.get_num_threads()
    bench(**arguments, repeats=2 if bench is engines else 1, output=tmp_path)
    assert torch.get_num_threads() == before
    report = Report.read(tmp_path / f"{bench.__name__}.json")
    assert {row.get(column) for row in report.rows} >= values
    assert (tmp_path / f"{bench.__name__}.md").read_text(encoding="utf-8") == report.markdown()
    if bench is ddp:
        assert all(row["computed_mb"] == row["measured_mb"] > 0 for row in report.rows)
    if bench is engines:
        assert len(json.loads((tmp_path / "engines_growth.json").read_text())["rows"]) == 4
        assert {"busy_plain_ms", "busy_ours", "busy_loop"} <= set(report.rows[0])
    if bench is weights:
        assert all(row.get("residual_0", 0.0) <= 1e-10 for row in report.rows)
        assert all(
            (row.get("threads", 0) > 0) == (row["method"] == "upgrad") for row in report.rows
        )
    if bench is gallery:
        row = next(row for row in report.rows if row["name"] == "fast")
        assert max(row["error"], row["tasks_error"]) < 1e-12
        assert "broken fails. RuntimeError: no gradient today" in report.markdown()
        assert "Not installed: absent." in report.markdown()


@pytest.mark.filterwarnings("ignore")  # of the other packages
def test_the_table_of_exactness_is_written(tmp_path: Path) -> None:
    torch.manual_seed(0)
    exactness(tmp_path)
    assert "LSTM" in (tmp_path / "exactness.md").read_text()

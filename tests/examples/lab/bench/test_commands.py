"""Every benchmark runs on tiny work and writes its table; nothing here is a measurement."""

from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.lab.bench import fit as fit_module
from examples.lab.bench import optimizers as optimizers_module
from examples.lab.bench import scale as scale_module
from examples.lab.bench._cases import SCALE, Case
from examples.lab.bench._memory import Peak
from examples.lab.bench.fit import fit
from examples.lab.bench.launches import launches
from examples.lab.bench.methods import methods
from examples.lab.bench.metrics import metrics
from examples.lab.bench.optimizers import optimizers
from examples.lab.bench.scale import scale, timed_here
from examples.lab.clock import Timing, ratio
from examples.lab.report import Report
from examples.lab.work.language import LanguageModel, language_model
from examples.lab.work.networks import mlp, mlp_tasks
from lightning_jd import optim
from lightning_jd.aggregators import available

# Lightning uses a name that torch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    work = {
        "instances": lambda: mlp(4, width=8, inputs=6),
        "tasks": lambda: mlp_tasks(2, batch=4, width=8),
    }
    monkeypatch.setattr(fit_module, "_WORK", work)
    monkeypatch.setattr(optimizers_module, "MODELS", {"small": [(4, 3), (3,)]})

    def build() -> object:
        return language_model(4, 6, vocabulary=11, width=8, layers=1, heads=2, positions=6)

    monkeypatch.setitem(SCALE, "gpt2-small", Case("gpt2-small", build, "mean", 1e6))
    peaks = {"plain": Peak(10.0, 10.0), "ours": Peak(30.0, 12.0)}
    monkeypatch.setattr(scale_module, "peak_memory", lambda case, engine, threads: peaks[engine])
    monkeypatch.setattr(
        scale_module, "answer_of", lambda _, words: timed_here(words[0], "cpu", int(words[3]))
    )


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
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_command_writes_its_table(
    bench: Callable[..., None], arguments: Any, column: str, values: set[Any], tmp_path: Path
) -> None:
    if "threads" in signature(bench).parameters:
        arguments = {**arguments, "threads": 1}
    bench(**arguments, repeats=1, output=tmp_path)
    report = Report.read(tmp_path / f"{bench.__name__}.json")
    assert {row.get(column) for row in report.rows} >= values
    assert (tmp_path / f"{bench.__name__}.md").read_text(encoding="utf-8") == report.markdown()


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_gradients_are_turned_against_the_momentum(name: str) -> None:
    arguments = {"momentum": 0.9} if name == "SGD" else {}
    params = optimizers_module._parameters([(8, 8), (8,)])
    optimizer = getattr(optim, name)(params, lr=1e-3, **arguments)
    for _ in range(6):
        optimizer.step()
        optimizers_module._turn_against_momentum(optimizer)
        for p, state in optimizer.state.items():
            momentum = state["momentum_buffer" if name == "SGD" else "exp_avg"]
            assert float(torch.sum(momentum * p.grad)) < 0


def test_ratios_are_paired_so_that_a_slow_round_does_not_count() -> None:
    assert ratio(Timing((1.0, 100.0, 1.0)), Timing((0.5, 50.0, 0.5))) == 2.0


def test_the_language_model_has_as_many_parameters_as_gpt2_small() -> None:
    with torch.device("meta"):
        model = LanguageModel(50257, 1024, 768, 12, 12)
    assert sum(p.numel() for p in model.parameters()) == 124_439_808

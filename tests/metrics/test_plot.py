"""Every metric draws a figure that shows what it says: names, lines, bands, numbers."""

import builtins
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torchmetrics import Metric

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("agg")

import matplotlib.pyplot as plt  # noqa: E402

from lightning_jd.errors import MissingDependencyError  # noqa: E402
from lightning_jd.metrics import PairwiseCosine  # noqa: E402
from tests.metrics.test_metrics import METRICS, NAMES, fed  # noqa: E402


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
@pytest.mark.parametrize(
    "updates", [0, *[pytest.param(n, marks=pytest.mark.slow) for n in (1, 40)]]
)
@pytest.mark.filterwarnings("ignore:The ``compute`` method:UserWarning")
def test_every_metric_draws(metric: Metric, updates: int) -> None:
    figure, _ = fed(metric, range(updates)).plot()
    figure.canvas.draw()


def test_a_heat_map_has_names_and_numbers() -> None:
    metric = PairwiseCosine(["a<b>", "$x$", "c"])
    metric.update(torch.tensor([[1.0, -0.5], [-0.5, 1.0]]), names=["a<b>", "$x$"])
    figure, ax = metric.plot()
    figure.canvas.draw()
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["a<b>", r"\$x\$", "c"]
    assert sorted(text.get_text() for text in ax.texts) == ["-0.50", "-0.50", "1.00", "1.00"]


def test_a_history_has_a_line_and_a_band_per_number() -> None:
    _, ax = fed(METRICS["task_weights"], range(40)).plot()
    assert [line.get_label() for line in ax.lines] == list(NAMES)
    assert len(ax.collections) == len(NAMES)
    assert ax.get_title(loc="left") == "Weight of each objective"


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return original(name, *args)

    metric = fed(METRICS["similarity"], range(2))
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match=r"lightning-jd\[plot\]"):
        metric.plot()

"""Natural mistakes: each is understood, or raises an error (or a warning) with its remedy."""

import importlib.util
import io
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning
import pytest
import torch
from torch import Tensor, nn
from tqdm import tqdm

from lightning_jd import JacobianDescent, JDReport, backward, metrics, resolve
from lightning_jd.aggregators import GradDrop, GramianAggregator, Mean
from lightning_jd.errors import ArgumentError, MissingDependencyError, SetupError, ShapeError
from lightning_jd.surfaces import _namespace
from lightning_jd.surfaces._settings import Settings
from lightning_jd.surfaces._start_line import bars_cleared
from lightning_jd.surfaces._support import check_supported
from tests.helpers.lightning import ManualRegression, Regression, assert_same_weights, batches, fit


class Returns(Regression):
    """Returns whatever a function makes of its three losses."""

    def __init__(self, form: Any) -> None:
        super().__init__("tasks")
        self.form = form

    def training_step(self, batch: Any, batch_idx: int = 0) -> Any:
        return self.form(*self.errors(batch).mean(dim=0))


def test_a_dict_of_losses_without_the_key_loss_is_a_dict_of_losses() -> None:
    ends = []
    for form in (
        lambda a, b, c: {"a": a, "b": b, "c": c, "d": None},
        lambda a, b, c: {"loss": {"a": a, "b": b, "c": c}},
    ):
        torch.manual_seed(0)
        module, callback = Returns(form), JacobianDescent()
        fit(module, batches(n=8), callbacks=[callback])
        assert callback.report is not None
        assert callback.report.names == ("a", "b", "c")
        ends.append(module)
    assert_same_weights(*ends, rtol=0, atol=0)


def test_a_dict_without_the_key_loss_that_has_other_entries() -> None:
    module = Returns(lambda a, b, c: {"a": a, "accuracy": 0.5})
    with pytest.raises(SetupError, match=r"got 'accuracy', a float .* Return {'loss': {'task'"):
        fit(module, batches(n=4), callbacks=[JacobianDescent()])


def test_a_number_among_the_losses() -> None:
    module = Returns(lambda a, b, c: {"loss": {"a": a, "b": 0.5}})
    with pytest.raises(ArgumentError, match=r"got float. A number has no gradient: leave it out"):
        fit(module, batches(n=4), callbacks=[JacobianDescent()])


@pytest.mark.skipif(
    lightning.__version__.startswith("2.5."), reason="Lightning raises an error of its own"
)
def test_the_class_of_the_callback_instead_of_an_object() -> None:
    with pytest.raises(SetupError, match=r"got the class JacobianDescent. Call it: JacobianDesc"):
        fit(Regression("tasks"), batches(n=4), callbacks=[JacobianDescent])


class OwnBackward(ManualRegression):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.errors(batch).mean().backward()
        optimizer.step()


def test_a_backward_of_ones_own_in_manual_optimization() -> None:
    message = r"manual_backward\(losses\)` in place of `loss\.backward"
    with pytest.raises(SetupError, match=message):
        fit(OwnBackward(), batches(n=4), callbacks=[JacobianDescent()])


def test_two_callbacks() -> None:
    callback = JacobianDescent()
    for callbacks in ([callback, JacobianDescent("mean")], [callback, callback]):
        with pytest.raises(SetupError, match=r"configured once, got it 2 times. Keep one of: the"):
            fit(Regression("tasks"), batches(n=4), callbacks=callbacks)


class WithoutSuper(GramianAggregator):
    def __init__(self, k: float = 1.0) -> None:
        self.k = k

    def weights(self, gramian: Tensor) -> Tensor:
        return gramian.new_ones(len(gramian))


class Unstored(GramianAggregator):
    def __init__(self, k: float = 1.0) -> None:
        super().__init__()
        self._k = k

    def weights(self, gramian: Tensor) -> Tensor:
        return gramian.new_ones(len(gramian))


@pytest.mark.parametrize("spec", [WithoutSuper, WithoutSuper()])
def test_a_constructor_without_that_of_its_base(spec: Any) -> None:
    with pytest.raises(ArgumentError, match=r"must call `super\(\).__init__\(\)`, WithoutSuper"):
        JacobianDescent(spec)


def test_an_argument_that_is_not_stored() -> None:
    with pytest.warns(UserWarning, match="Unstored should store the argument 'k' .* `self.k`"):
        JacobianDescent(Unstored(2.0))


def test_an_aggregator_by_the_path_of_its_class() -> None:
    spec = {"class_path": "lightning_jd.aggregators.CAGrad", "init_args": {"c": "0.4"}}
    assert repr(JacobianDescent(spec)) == repr(JacobianDescent({"name": "cagrad", "c": 0.4}))
    assert resolve({"class_path": "lightning_jd.UPGrad"}).name == "upgrad"
    with pytest.raises(
        ArgumentError, match=r"must be the path of a class, got 'lightning_jd.Upgr'"
    ):
        resolve({"class_path": "lightning_jd.Upgr"})
    with pytest.raises(ArgumentError, match="must be those of CAGrad"):
        resolve({"class_path": "lightning_jd.CAGrad", "init_args": {"d": 1}})


def test_tasks_that_were_stacked() -> None:
    with pytest.warns(UserWarning, match="a vector of 3 losses, .* rows='tasks'"):
        fit(
            Returns(lambda *losses: torch.stack(losses) / 2),
            batches(n=4),
            callbacks=[JacobianDescent()],
        )


def test_a_run_that_is_too_short_for_its_log() -> None:
    with pytest.warns(RuntimeWarning, match=r"logged nothing: .* log={'every_n_steps': 1}"):
        fit(Regression("tasks"), batches(n=8), callbacks=[JacobianDescent(log=True)])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*logged nothing.*")
        callback = JacobianDescent(log={"every_n_steps": 1})
        fit(Regression("tasks"), batches(n=8), callbacks=[callback])


def test_several_modules_in_a_list() -> None:
    layer = nn.Linear(2, 2)
    with pytest.raises(ArgumentError, match=r"got Linear as '0'. Wrap .* `nn.ModuleList`"):
        backward(list(layer(torch.ones(1, 2))[0]), [layer])  # type: ignore[list-item]


@pytest.mark.parametrize(
    "metric",
    [
        metrics.ConflictRate(),
        metrics.ConflictSummary(),
        metrics.DualConeViolation(),
        metrics.NormImbalance(),
        metrics.SimilarityToMean(),
        metrics.StationarityDistance(),
        metrics.WeightEntropy(),
    ],
)
def test_metrics_take_a_report(metric: Any) -> None:
    report = backward(_losses(), _NET)
    expected = type(metric)()
    expected.update(report.gramian, report.weights)
    metric.update(report)
    torch.testing.assert_close(metric.compute(), expected.compute())


def test_a_function_of_a_gramian_is_given_a_report() -> None:
    with pytest.raises(ShapeError, match=r"must be a tensor, got Report. Pass its `gramian`"):
        metrics.conflict_rate(backward(_losses(), _NET))  # type: ignore[arg-type]


_NET = nn.Linear(3, 2)


def _losses() -> dict[str, Tensor]:
    return dict(zip("ab", _NET(torch.ones(4, 3)).square().mean(dim=0), strict=True))


def test_the_report_in_a_notebook(tmp_path: Path) -> None:
    report = JDReport(str(tmp_path))
    assert repr(report) == f"JDReport(folder={str(tmp_path)!r}, recorded=0)"
    assert report._repr_html_().startswith("<pre>JDReport(")
    fit(Regression("tasks"), batches(n=8), callbacks=[JacobianDescent(), report])
    assert repr(report) == f"JDReport(folder={str(tmp_path)!r}, recorded=4)"
    shown = report._repr_html_()
    assert shown.startswith('<iframe srcdoc="&lt;!')
    assert shown.count('"') == 6  # the page is escaped


def test_a_line_is_not_printed_into_a_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    with tqdm(total=2, file=screen), bars_cleared():
        begin = len(screen.getvalue())
        print("the line", file=screen)
    assert screen.getvalue()[begin - 1] in "\r\n"
    assert "the line\n" in screen.getvalue()


# --- Messages that no real Trainer on one CPU can provoke


class SomeStrategy:
    pass


def test_an_unknown_strategy_on_several_processes() -> None:
    trainer = SimpleNamespace(strategy=SomeStrategy(), world_size=2)
    with pytest.raises(SetupError, match=r"requires strategy='ddp', .* got SomeStrat"):
        check_supported(trainer, SimpleNamespace(automatic_optimization=True), Settings(Mean()))


class ModelParallelStrategy:
    pass


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            Settings(Mean(), params="shared"),
            "params='shared' cannot be combined with ModelParallel",
        ),
        (
            Settings(Mean(), nonfinite="skip"),
            "nonfinite='skip' cannot be combined with ModelParallel",
        ),
        (Settings(GradDrop()), "must be a weighting of the rows, got graddrop"),
    ],
)
def test_what_cannot_work_with_parameters_in_pieces(settings: Settings, message: str) -> None:
    trainer = SimpleNamespace(strategy=ModelParallelStrategy(), world_size=2)
    with pytest.raises(SetupError, match=message):
        check_supported(trainer, SimpleNamespace(automatic_optimization=True), settings)


def test_lightning_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _namespace.SURFACES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(_namespace, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="pip install lightning"):
        _namespace.surfaces_in_use()


def test_what_is_installed_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_one(name: str) -> Any:
        return importlib.util.find_spec(name) if name == "lightning" else None

    monkeypatch.delitem(sys.modules, "pytorch_lightning", raising=False)
    monkeypatch.delitem(sys.modules, "lightning.pytorch")
    monkeypatch.setattr(_namespace, "find_spec", only_one)
    assert _namespace.surfaces_in_use().__name__ == "lightning_jd.surfaces.lightning_pytorch"

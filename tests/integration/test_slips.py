"""Natural mistakes: each is understood, or raises an error (or a warning) with its remedy."""

import io
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from tqdm import tqdm

from lightning_jd import JacobianDescent, JDReport, available, backward, explain, metrics, resolve
from lightning_jd.aggregators import GramianAggregator
from lightning_jd.errors import ArgumentError, NotComputedError, SetupError
from lightning_jd.surfaces._start_line import bars_cleared
from tests.helpers.lightning import Regression, assert_same_weights, batches, fit


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


class Outputs(L.Callback):
    def on_train_batch_end(self, _t: Any, _m: Any, outputs: Any, *_: Any) -> None:
        self.outputs = outputs


def test_the_losses_reach_other_callbacks_without_their_graph() -> None:
    outputs = Outputs()
    module = Returns(lambda a, b, c: {"a": a, "b": b, "c": c})
    fit(module, batches(n=4), callbacks=[JacobianDescent(), outputs])
    losses = outputs.outputs
    assert not any(value.requires_grad for value in losses.values())
    mean = torch.stack([losses[name] for name in "abc"]).mean()
    torch.testing.assert_close(losses["loss"], mean)


def test_a_dict_without_the_key_loss_that_has_other_entries() -> None:
    module = Returns(lambda a, b, c: {"a": a, "accuracy": 0.5})
    with pytest.raises(SetupError, match=r"got 'accuracy', a float .* Return {'loss': {'task'"):
        fit(module, batches(n=4), callbacks=[JacobianDescent()])


def test_a_number_among_the_losses() -> None:
    module = Returns(lambda a, b, c: {"loss": {"a": a, "b": 0.5}})
    with pytest.raises(ArgumentError, match=r"got float. A number has no gradient: leave it out"):
        fit(module, batches(n=4), callbacks=[JacobianDescent()])


def test_the_class_of_the_callback_instead_of_an_object() -> None:
    with pytest.raises(SetupError, match=r"got the class JacobianDescent. Call it: JacobianDesc"):
        fit(Regression("tasks"), batches(n=4), callbacks=[JacobianDescent])


def test_a_class_of_torchjd_instead_of_an_object() -> None:
    torchjd = pytest.importorskip("torchjd.aggregation")
    with pytest.raises(ArgumentError, match=r"got the class UPGrad. Call it: UPGrad\(\)"):
        JacobianDescent(torchjd.UPGrad)


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


def test_every_method_stores_its_arguments() -> None:
    needed = {
        "clip": {"norm": 1.0},
        "constant": {"weights": [1.0]},
        "krum": {"n_byzantine": 1},
        "trimmedmean": {"trim": 1},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in available():
            assert resolve({"name": name, **needed.get(name, {})}).name == name


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


class OneByOne(Regression):
    def training_step(self, batch: Any, batch_idx: int = 0) -> Any:
        return torch.stack([loss.mean() for loss in self.errors(batch)])


@pytest.mark.parametrize(
    ("module", "options"),
    [
        (lambda: OneByOne("instances"), {}),  # as many as there are examples
        (lambda: Returns(lambda *losses: torch.stack(losses)), {"rows": "tasks"}),
        (lambda: Regression("instances"), {}),
    ],
)
def test_nothing_is_said_of_vectors_that_are_meant(module: Any, options: Any) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*torch.stack.*")
        fit(module(), batches(n=4), callbacks=[JacobianDescent(**options)])


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


@pytest.mark.parametrize("cls", [metrics.PairwiseCosine, metrics.TaskWeights])
def test_metrics_with_names_take_those_of_the_report(cls: Any) -> None:
    report = backward(_losses(), _NET)
    metric, expected = cls(["b", "x", "a"]), cls(["b", "x", "a"])
    value = report.weights if cls is metrics.TaskWeights else report.gramian
    expected.update(value, names=["a", "b"])
    metric.update(report)
    torch.testing.assert_close(metric.compute(), expected.compute(), equal_nan=True)


def test_the_report_of_a_balancer_has_no_gramian_for_a_metric() -> None:
    with pytest.raises(NotComputedError, match="got a step of a balancer"):
        metrics.ConflictRate().update(backward(_losses(), _NET, "equal"))


_NET = nn.Linear(3, 2)


def _losses() -> dict[str, Tensor]:
    return dict(zip("ab", _NET(torch.ones(4, 3)).square().mean(dim=0), strict=True))


def test_an_explanation_is_its_table() -> None:
    explanation = explain(_losses(), _NET)
    assert repr(explanation) == str(explanation)
    assert "2 objectives (tasks), 2 parameters" in explanation._repr_html_()


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

"""Every way to ask for Jacobian descent does what `lightning_jd.backward` does in a plain loop."""

import ast
import inspect
import re
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy

import lightning_jd
from lightning_jd.aggregators import UPGrad
from lightning_jd.core import backward
from lightning_jd.errors import ArgumentError, SetupError
from lightning_jd.surfaces import JacobianDescent, JDModuleMixin, JDStrategy, _build
from lightning_jd.surfaces._settings import TakesSettings
from lightning_jd.surfaces.strategies import AddsCallback, OnOneDevice
from tests.helpers.lightning import (
    ManualRegression,
    Regression,
    assert_same_weights,
    batches,
    fit,
    hand_written,
    moved,
    trainer,
)


class Flagged(JDModuleMixin, Regression):
    jacobian_descent = "upgrad"


class FlaggedWithArguments(JDModuleMixin, Regression):
    jacobian_descent = {"aggregator": {"name": "upgrad"}, "memory": "low"}  # noqa: RUF012


class FlaggedByMethod(JDModuleMixin, Regression):
    def configure_jacobian_descent(self) -> Any:
        return {"aggregator": self.method}

    method = "upgrad"


class FlaggedWithoutMixin(Regression):
    jacobian_descent = "upgrad"


Surface = tuple[Callable[..., Regression], Callable[[], dict[str, Any]]]
SURFACES: dict[str, Surface] = {
    "callback": (Regression, lambda: {"callbacks": [JacobianDescent("upgrad")]}),
    "callback with an object": (Regression, lambda: {"callbacks": [JacobianDescent(UPGrad())]}),
    "strategy name": (Regression, lambda: {"strategy": "jd"}),
    "strategy object": (Regression, lambda: {"strategy": JDStrategy("upgrad")}),
    "flag": (Flagged, dict),
    "flag with arguments": (FlaggedWithArguments, dict),
    "flag by method": (FlaggedByMethod, dict),
    "manual": (ManualRegression, lambda: {"callbacks": [JacobianDescent()]}),
}


@pytest.mark.parametrize("form", ["instances", "matrix", "tasks", "list", "in_dict"])
@pytest.mark.parametrize("name", SURFACES)
def test_equal_to_a_plain_loop(name: str, form: str) -> None:
    make, arguments = SURFACES[name]
    module = make(form)
    fit(module, **arguments())
    loop = Regression(form)
    hand_written(loop, lambda losses: backward(losses, loop, "upgrad"))
    assert moved(module, Regression(form))
    assert_same_weights(module, loop, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", SURFACES)
def test_says_once_that_it_is_active(name: str, caplog: pytest.LogCaptureFixture) -> None:
    make, arguments = SURFACES[name]
    with caplog.at_level("INFO"):
        fit(make("tasks"), **arguments())
    lines = [line for line in caplog.messages if line.startswith("Jacobian descent with")]
    assert len(lines) == 1
    assert "upgrad: 3 objectives, one per task; 75 parameters in 4 tensors." in lines[0]


@pytest.mark.parametrize("rows", ["tasks", "instances"])
def test_rows_override_the_type_of_the_losses(rows: str) -> None:
    callback = JacobianDescent("mgda", rows=rows)
    fit(Regression("matrix"), callbacks=[callback])
    assert len(callback.report.names) == {"tasks": 3, "instances": 4}[rows]


class SometimesMissing(Regression):
    """One task has a loss in every second batch only; it is left out, or None."""

    def __init__(self, as_none: bool) -> None:
        super().__init__("tasks")
        self.as_none = as_none
        self.calls = 0

    def in_form(self, errors: torch.Tensor) -> Any:
        losses = super().in_form(errors)["loss"]
        self.calls += 1
        if self.calls % 2:
            losses["b"] = None
            if not self.as_none:
                del losses["b"]
        return {"loss": losses}


@pytest.mark.parametrize("as_none", [True, False])
def test_a_missing_task_is_no_objective(as_none: bool) -> None:
    module, loop = SometimesMissing(as_none), SometimesMissing(as_none)
    fit(module, callbacks=[JacobianDescent("upgrad")])
    hand_written(loop, lambda losses: backward(losses, loop, "upgrad"))
    assert_same_weights(module, loop, rtol=1e-5, atol=1e-6)


def test_preferences_by_name_hold_for_tasks_that_come_later() -> None:
    numbers = {"a": 1.0, "b": 3.0, "c": 0.5}
    module, loop = SometimesMissing(False), SometimesMissing(False)
    fit(module, callbacks=[JacobianDescent({"name": "upgrad", "preference": numbers})])

    def by_position(losses: dict[str, torch.Tensor]) -> None:
        backward(losses, loop, UPGrad([numbers[name] for name in losses]))

    hand_written(loop, by_position)
    assert_same_weights(module, loop, rtol=1e-5, atol=1e-6)


TWICE = {
    "callback and strategy": (
        Regression,
        lambda: {"strategy": "jd", "callbacks": [JacobianDescent()]},
    ),
    "callback and flag": (Flagged, lambda: {"callbacks": [JacobianDescent()]}),
    "strategy and flag": (Flagged, lambda: {"strategy": "jd"}),
    "callback and flag without mixin": (
        FlaggedWithoutMixin,
        lambda: {"callbacks": [JacobianDescent()]},
    ),
    "strategy and flag without mixin": (FlaggedWithoutMixin, lambda: {"strategy": "jd"}),
}


@pytest.mark.parametrize("name", TWICE)
def test_asking_twice_is_an_error(name: str) -> None:
    make, arguments = TWICE[name]
    with pytest.raises(SetupError, match="must be configured once"):
        fit(make("tasks"), **arguments())


@pytest.mark.parametrize("form", ["instances", "matrix", "tasks", "list", "in_dict"])
def test_a_flag_without_the_mixin_is_never_a_silent_plain_run(form: Any) -> None:
    module = FlaggedWithoutMixin(form)
    with pytest.raises(Exception, match=r"scalar outputs|dict|list|unsupported|Misconf"):
        fit(module)
    assert not moved(module, Regression())


def test_installing_the_package_changes_no_trainer() -> None:
    assert {point.group for point in distribution("lightning-jd").entry_points} == {
        "console_scripts"
    }
    assert not any("lightning_jd" in type(each).__module__ for each in trainer().callbacks)


def test_a_flag_ends_with_its_module() -> None:
    run = trainer()
    run.fit(Flagged("tasks"), batches())
    plain, same = Regression("scalar"), Regression("scalar")
    run.fit_loop.max_epochs = 4
    run.fit(plain, batches())
    fit(same)
    assert_same_weights(plain, same, rtol=0, atol=0)


@pytest.mark.parametrize("devices", [2, 3])
def test_jd_has_one_device(devices: int) -> None:
    with pytest.raises(SetupError, match=f"one device, got {devices}. Set devices=1, or .*jd_ddp"):
        trainer(strategy="jd", devices=devices)


class FakeDeepSpeed(L.strategies.SingleDeviceStrategy):
    """Stands for the real one, which is not installed: what counts is the name of the class."""


FakeDeepSpeed.__name__ = "DeepSpeedStrategy"


def test_strategies_that_cannot_work_are_refused() -> None:
    with pytest.raises(SetupError, match="does not support DeepSpeedStrategy: DeepSpeed runs its"):
        fit(Regression("tasks"), strategy=FakeDeepSpeed(), callbacks=[JacobianDescent()])


def test_step_accumulation_is_refused_in_manual_optimization() -> None:
    with pytest.raises(SetupError, match="in manual optimization only your code knows"):
        fit(ManualRegression("tasks"), callbacks=[JacobianDescent(accumulation="step")])


@pytest.mark.parametrize("module", [Regression("scalar"), ManualRegression("scalar")])
@pytest.mark.parametrize("surface", ["callback", "strategy"])
def test_a_scalar_in_the_first_batch_is_an_error_at_once(module: Any, surface: str) -> None:
    asked: dict[str, Any] = {"strategy": "jd"}
    if surface == "callback":
        asked = {"callbacks": [JacobianDescent()]}
    run = trainer(**asked)
    with pytest.raises(SetupError, match=r"got one scalar in the first batch. Return the vector"):
        run.fit(module, batches())
    assert run.fit_loop.batch_idx == 0


def test_no_call_of_manual_backward_is_an_error_at_once() -> None:
    class Idle(ManualRegression):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            self.optimizers().step()

    with pytest.raises(SetupError, match="got no loss in the first batch"):
        fit(Idle("tasks"), callbacks=[JacobianDescent()])


@pytest.mark.parametrize("params", [None, 3, ["trunk.*", 3]])
def test_params_are_checked_at_once(params: Any) -> None:
    with pytest.raises(ArgumentError, match=r"`select` \(in Lightning: `params`\) must be 'all'"):
        JacobianDescent(params=params)


def test_a_typo_and_shared_instances_speak_of_params() -> None:
    with pytest.raises(ArgumentError, match=r"in Lightning: `params`\) must choose at least one"):
        fit(Regression("tasks"), callbacks=[JacobianDescent(params="shraed")])
    with pytest.raises(ArgumentError, match="'shared' parameters are those of several tasks, got"):
        fit(Regression("instances"), callbacks=[JacobianDescent(params="shared")])


# --- An argument is written in one file and a strategy in another; every surface follows


ROOT = Path(__file__).parents[2]
PACKAGES = ["lightning.pytorch", "pytorch_lightning"]
ARGUMENTS = {
    name: parameter.default
    for name, parameter in inspect.signature(TakesSettings).parameters.items()
    if name != "kwargs"
}


@pytest.mark.parametrize("package", PACKAGES)
def test_callback_and_strategies_have_the_same_signature(package: str) -> None:
    classes = _build.build(package, "somewhere")
    for name in ("JacobianDescent", "JDStrategy", "JDDDPStrategy"):
        assert vars(TakesSettings)["__init__"] is classes[name].__init__
        assert classes[name].__module__ == "somewhere"


def test_every_argument_is_documented_for_help_and_in_the_quickstart() -> None:
    table = re.findall(
        r"^\| `(\w+)=(.+?)` \|", (ROOT / "docs/quickstart.md").read_text(encoding="utf-8"), re.M
    )
    assert {name: ast.literal_eval(default) for name, default in table} == ARGUMENTS
    shown = inspect.getdoc(lightning_jd.JacobianDescent)
    assert shown is not None
    for name in ARGUMENTS:
        assert re.search(rf"^    {name}: ", shown, re.M), name
    assert "**kwargs" not in shown


def test_an_unknown_argument_is_an_error_that_names_the_class() -> None:
    with pytest.raises(TypeError, match=r"JacobianDescent.__init__\(\) got .* 'agregator'"):
        lightning_jd.JacobianDescent(agregator="mean")
    with pytest.raises(TypeError, match=r"'reg'.*\{'name': 'upgrad', 'reg': 0\.001\}"):
        lightning_jd.JacobianDescent("upgrad", reg=1e-3)


class JDCounting(AddsCallback, OnOneDevice):
    """A new strategy, as `surfaces/strategies.py` would hold it."""

    strategy_name = "jd_counting"
    lightning_base = "strategies.SingleDeviceStrategy"
    steps = 0

    def optimizer_step(self, *args: Any, **kwargs: Any) -> Any:
        self.steps += 1
        return super().optimizer_step(*args, **kwargs)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_new_strategy_is_one_class(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_build, "STRATEGIES", (JDCounting,))
    built = _build.build(package, __name__)["JDCounting"]
    base = import_module(f"{package}.strategies").SingleDeviceStrategy
    assert issubclass(built, base)
    strategy = built("mgda", params="net.0.*")
    assert repr(strategy) == "JDCounting(MGDA(), params='net.0.*')"
    if base is not SingleDeviceStrategy:
        return  # the Trainer of the tests is that of the other package
    module, same = Regression("tasks"), Regression("tasks")
    fit(module, strategy=strategy)
    fit(same, callbacks=[lightning_jd.JacobianDescent("mgda", params="net.0.*")])
    assert strategy.steps > 0
    assert_same_weights(module, same, rtol=0, atol=0)


def test_an_argument_reaches_the_callback_from_every_surface() -> None:
    class Flagged(lightning_jd.JDModuleMixin, Regression):
        jacobian_descent = {"check_replicas": 7}  # noqa: RUF012

    callbacks = [
        lightning_jd.JacobianDescent(check_replicas=7),
        lightning_jd.JDStrategy(check_replicas=7).jacobian_descent,
        lightning_jd.JDDDPStrategy(check_replicas=7).jacobian_descent,
        Flagged("tasks").configure_callbacks()[0],
    ]
    assert [callback.settings.check_replicas for callback in callbacks] == [7] * 4


def test_no_other_file_repeats_an_argument() -> None:
    """All but `fabric.backward`, a single call, which takes only the arguments it can use."""
    for path in (ROOT / "lightning_jd/surfaces").glob("*.py"):
        if path.name in {"_settings.py", "fabric.py"}:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                names = {argument.arg for argument in [*node.args.args, *node.args.kwonlyargs]}
                assert len(names & ARGUMENTS.keys()) <= 1, f"{path.name}, line {node.lineno}"

"""An argument is written in one file and a strategy in another; every surface follows."""

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.strategies import SingleDeviceStrategy

import lightning_jd
from lightning_jd.surfaces import _build
from lightning_jd.surfaces._settings import TakesSettings
from lightning_jd.surfaces.strategies import AddsCallback, OnOneDevice
from tests.helpers.lightning import Regression, assert_same_weights, fit

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

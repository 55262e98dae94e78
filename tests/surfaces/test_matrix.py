"""Every cell of the support matrix on one device; `test_ddp.py` runs those on two processes."""

from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
from torch import Tensor

from lightning_jd.errors import SetupError
from lightning_jd.surfaces import JacobianDescent, JDStrategy
from lightning_jd.surfaces._support import REFUSED
from tests.helpers.lightning import Regression, assert_same_weights, batches, fit, moved
from tests.surfaces.features import FEATURES, Feature
from tests.surfaces.matrix import END, MODULES, PRECISIONS, START, STRATEGIES, table

ONE_DEVICE = [name for name, processes in STRATEGIES.items() if processes == 1]


def surface(name: str, aggregator: str) -> dict[str, Any]:
    if "jd" in name:
        return {"strategy": JDStrategy(aggregator)}
    return {"callbacks": [JacobianDescent(aggregator)]}


@pytest.mark.parametrize(
    "module",
    [pytest.param(m, marks=pytest.mark.slow if "compiled" in m else ()) for m in MODULES],
)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("strategy", ONE_DEVICE)
def test_cell_on_one_device(strategy: str, precision: str, module: str) -> None:
    arguments, tolerance = PRECISIONS[precision]
    data = batches(n=12)
    ours, plain = MODULES[module]("instances"), MODULES[module]("scalar")
    fit(plain, data, max_epochs=1, **arguments())
    ours = MODULES[module]("instances")  # after `plain`, which compiles for itself
    fit(ours, data, max_epochs=1, **arguments(), **surface(strategy, "mean"))
    assert moved(ours, MODULES[module]())
    assert_same_weights(ours, plain, **tolerance)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_cell(name: str) -> None:
    fake = type(name, (L.strategies.SingleDeviceStrategy,), {})  # the real ones need accelerators
    with pytest.raises(SetupError, match=f"does not support {name}: "):
        fit(Regression("tasks"), strategy=fake(), callbacks=[JacobianDescent()])


def test_the_table_of_the_page_is_up_to_date() -> None:
    page = (Path(__file__).parents[2] / "docs" / "limits.md").read_text(encoding="utf-8")
    assert f"{START}\n{table()}\n{END}" in page


# --- Mean, and a single objective, give the weights of plain Lightning, whatever the Trainer does


SLOW = pytest.mark.slow
FORMS = {"instances": "mean", "tasks": "mean", "single": "upgrad"}


def run(feature: Feature, form: str, aggregator: str | None) -> object:
    module = feature.module(form)
    arguments = feature.trainer()
    if aggregator is not None:
        arguments["callbacks"] = [JacobianDescent(aggregator), *arguments.get("callbacks", [])]
    fit(module, batches(), **arguments)
    return module


@pytest.mark.parametrize(
    "form", [pytest.param(form, marks=() if form == "tasks" else SLOW) for form in FORMS]
)
@pytest.mark.filterwarnings("ignore:The Gramian must agree:RuntimeWarning")
@pytest.mark.parametrize("name", FEATURES)
def test_equal_to_plain_training(name: str, form: str) -> None:
    feature = FEATURES[name]
    expected = run(feature, "scalar", None)
    actual = run(feature, form, FORMS[form])
    assert moved(actual, feature.module(form))
    assert_same_weights(actual, expected, **feature.tolerance)


class Summed(Regression):
    """Plain training of the sum of the losses; some gradients may be divided."""

    def __init__(self, divided: float = 1.0) -> None:
        super().__init__("tasks")
        for parameter in self.net[0].parameters():
            parameter.register_hook(lambda gradient: gradient / divided)

    def in_form(self, errors: Tensor) -> Tensor:
        return sum(super().in_form(errors)["loss"].values())


def test_with_a_selection_sum_is_plain_training_of_the_sum() -> None:
    module, plain = Regression("tasks"), Summed()
    fit(module, callbacks=[JacobianDescent("sum", params="net.0.*")])
    fit(plain)
    assert_same_weights(module, plain)

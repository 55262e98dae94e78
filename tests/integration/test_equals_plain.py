"""Mean, and a single objective, give the weights of plain Lightning, whatever the Trainer does."""

import pytest
from torch import Tensor

from lightning_jd.surfaces import JacobianDescent
from tests.helpers.lightning import Regression, assert_same_weights, batches, fit, moved
from tests.integration.features import FEATURES, Feature

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
@pytest.mark.filterwarnings("ignore:Gradients must be linear:RuntimeWarning")
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

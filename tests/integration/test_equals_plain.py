"""Mean, and a single objective, give the weights of plain Lightning, whatever the Trainer does."""

import pytest

from lightning_jd.surfaces import JacobianDescent
from tests.helpers.lightning import assert_same_weights, batches, fit, moved
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
@pytest.mark.parametrize("name", FEATURES)
def test_equal_to_plain_training(name: str, form: str) -> None:
    feature = FEATURES[name]
    expected = run(feature, "scalar", None)
    actual = run(feature, form, FORMS[form])
    assert moved(actual, feature.module(form))
    assert_same_weights(actual, expected, **feature.tolerance)

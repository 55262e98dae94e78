"""`lightning_jd.fabric.backward` in place of `fabric.backward`."""

from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.precision import MixedPrecision
from lightning.fabric.strategies import DDPStrategy

from lightning_jd import fabric as jd
from lightning_jd.aggregators import resolve
from lightning_jd.core import backward
from lightning_jd.errors import NonFiniteError, SetupError
from tests.helpers.lightning import Regression, assert_same_weights, batches, hand_written, network


def train(fabric: Fabric, form: str, aggregator: str | None, **options: Any) -> torch.nn.Module:
    """Two epochs with Fabric; without an aggregator by its own `backward`."""
    recipe = Regression(form)
    model, optimizer = fabric.setup(network(), torch.optim.SGD(network().parameters(), lr=0.05))
    optimizer.param_groups[0]["params"] = list(model.parameters())
    for _ in range(2):
        for x, y in batches():
            output = recipe.in_form((model(x) - y).square())
            losses = output["loss"] if isinstance(output, dict) else output
            optimizer.zero_grad()
            if aggregator is None:
                fabric.backward(losses)
            else:
                jd.backward(fabric, losses, model, aggregator, **options)
            optimizer.step()
    return model.module


def fabric(**arguments: Any) -> Fabric:
    made = Fabric(accelerator="cpu", devices=1, **arguments)
    made.launch()
    return made


@pytest.mark.parametrize("form", ["instances", "matrix", "tasks", "list"])
def test_equal_to_a_plain_loop(form: str) -> None:
    loop = Regression(form)
    hand_written(loop, lambda losses: backward(losses, loop, "upgrad"))
    assert_same_weights(train(fabric(), form, "upgrad"), loop.net, rtol=1e-5, atol=1e-6)


PRECISIONS: dict[str, Any] = {
    "32": (dict, {}),
    "64": (lambda: {"precision": "64-true"}, {}),
    "bf16-mixed": (lambda: {"precision": "bf16-mixed"}, {"rtol": 2e-2, "atol": 2e-3}),
    "16-mixed": (
        lambda: {
            "plugins": [
                MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=128.0))
            ]
        },
        {"rtol": 2e-3, "atol": 5e-4},
    ),
}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("form", "aggregator"), [("instances", "mean"), ("single", "upgrad")])
def test_mean_equals_fabric_itself(precision: str, form: str, aggregator: str) -> None:
    arguments, tolerance = PRECISIONS[precision]
    actual = train(fabric(**arguments()), form, aggregator)
    expected = train(fabric(**arguments()), "scalar", None)
    assert_same_weights(actual, expected, **tolerance)


def test_nonfinite() -> None:
    run = fabric()
    model = run.setup(network())
    losses = model(torch.ones(4, 5)).square().mean(dim=0)
    spoiled = {"a": losses[0], "b": losses[1] * torch.nan}
    with pytest.raises(NonFiniteError, match="'b'"):
        jd.backward(run, spoiled, model)
    losses = model(torch.ones(4, 5)).square().mean(dim=0)
    spoiled = {"a": losses[0], "b": losses[1] * torch.nan}
    assert jd.backward(run, spoiled, model, nonfinite="skip").names == ("a",)


def test_what_cannot_work_is_refused() -> None:
    for option in ("static_graph", "find_unused_parameters"):
        hiding = Fabric(accelerator="cpu", devices=1, strategy=DDPStrategy(**{option: True}))
        with pytest.raises(SetupError, match=f"{option}=True"):
            jd.backward(hiding, torch.ones(2, requires_grad=True), network(), params="shared")

    class Odd:
        strategy = object()

    with pytest.raises(SetupError, match=r"on one device, .* got object"):
        jd.backward(Odd(), torch.ones(2, requires_grad=True), network())


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_balancer_is_the_loop_with_its_weights(precision: Any) -> None:
    method = resolve("uw")
    loop = Regression("tasks")
    hand_written(loop, lambda losses: backward(losses, loop, method))
    tolerance = 1e-5 if precision == "32-true" else 5e-2
    found = train(fabric(precision=precision), "tasks", resolve("uw"))  # type: ignore[arg-type]
    assert_same_weights(found, loop.net, rtol=tolerance, atol=tolerance)

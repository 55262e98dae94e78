"""A real Trainer on the device: every feature gives the weights of the same fit on the CPU."""

from typing import Any

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.testing import assert_close

from lightning_jd import JacobianDescent, JDStrategy
from lightning_jd.errors import NonFiniteError
from tests.helpers.lightning import QUIET, ManualRegression, Regression, batches, moved
from tests.integration.features import FEATURES, FP16
from tests.integration.test_nonfinite import Exploding
from tests.pretended import DEVICE, host
from tests.pretended._tensor import _restored
from tests.pretended.lightning import on_device

#: Dynamo does not trace a backend that lives in Python.
SUPPORTED = [name for name in FEATURES if "compiled" not in name]


def fitted(module: Regression, callback: Any, **arguments: Any) -> Regression:
    given = {**QUIET, "max_epochs": 2, **arguments}
    given["callbacks"] = [*given.get("callbacks", []), *([callback] if callback else [])]
    if given.get("barebones"):
        given = {k: v for k, v in given.items() if not k.startswith(("enable", "logger"))}
    L.Trainer(**given).fit(module, batches())
    return module


def numbers(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: host(tensor).cpu() for name, tensor in module.state_dict().items()}


def assert_same(a: nn.Module, b: nn.Module, **tolerance: float) -> None:
    assert_close(numbers(a), numbers(b), **tolerance)


@pytest.mark.parametrize("name", SUPPORTED)
def test_a_feature_gives_the_weights_of_the_cpu(name: str) -> None:
    feature = FEATURES[name]
    cpu = fitted(feature.module("instances"), JacobianDescent("upgrad"), **feature.trainer())
    start = feature.module("instances")
    module = fitted(
        feature.module("instances"), JacobianDescent("upgrad"), **on_device(**feature.trainer())
    )
    assert_same(module, cpu, **(feature.tolerance or {"rtol": 1e-5, "atol": 1e-6}))
    assert moved(cpu, start)


FORMS = ["single", "instances", "matrix", "tasks", "list", "in_dict"]
OPTIONS: dict[str, dict[str, Any]] = {
    "layers": {"groups": "layer"},
    "low memory": {"memory": "low"},
    "steps": {"accumulation": "step"},
    "a pattern": {"params": "net.0.*"},
    "logged": {"log": {"every_n_steps": 1, "per_group": True, "stationarity": True}},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_gives_the_weights_of_the_cpu(option: str, form: Any) -> None:
    given = OPTIONS[option]
    trainer = {"accumulate_grad_batches": 3} if "accumulation" in given else {}
    cpu = fitted(Regression(form), JacobianDescent("upgrad", **given), **trainer)
    module = fitted(Regression(form), JacobianDescent("upgrad", **given), **on_device(**trainer))
    assert_same(module, cpu, rtol=1e-5, atol=1e-6)


def test_the_strategy_trains_on_the_device() -> None:
    cpu = fitted(Regression(), JacobianDescent("upgrad"))
    module = fitted(
        Regression(), None, **on_device(strategy=JDStrategy("upgrad", device=str(DEVICE)))
    )
    assert_same(module, cpu, rtol=1e-5, atol=1e-6)


def test_mean_is_ordinary_training_on_the_device() -> None:
    plain = fitted(Regression("scalar"), None, **on_device())
    module = fitted(Regression("instances"), JacobianDescent("mean"), **on_device())
    assert_same(module, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", ["tasks", "instances"])
@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_an_objective_that_is_not_finite_is_named_or_skipped(what: str, form: str) -> None:
    name = "'b'" if form == "tasks" else "'1'"
    with pytest.raises(NonFiniteError, match=rf"In batch 2 of epoch 0.*{name}"):
        fitted(Exploding(form, what), JacobianDescent("upgrad"), **on_device())
    cpu, device = (JacobianDescent("upgrad", nonfinite="skip") for _ in range(2))
    with pytest.warns(match="NaN or infinite, and nonfinite='skip' dropped them"):
        expected = fitted(Exploding(form, what), cpu)
    with pytest.warns(match="NaN or infinite, and nonfinite='skip' dropped them"):
        module = fitted(Exploding(form, what), device, **on_device())
    assert device.skipped == cpu.skipped >= 2
    assert_same(module, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_a_fit_resumes_from_a_checkpoint_of_the_device(tmp_path: Any) -> None:
    options = {"enable_checkpointing": True, "max_epochs": 1}
    whole = fitted(Regression("tasks"), JacobianDescent("famo"), **on_device())
    saver = ModelCheckpoint(tmp_path, save_last=True)
    fitted(Regression("tasks"), JacobianDescent("famo"), **on_device(**options, callbacks=[saver]))
    resumed = Regression("tasks")
    again = [JacobianDescent("famo"), ModelCheckpoint(tmp_path, save_last=True)]
    arguments = {**QUIET, "enable_checkpointing": True, "max_epochs": 2, "callbacks": again}
    trainer = L.Trainer(**on_device(**arguments))
    with torch.serialization.safe_globals([_restored]):
        trainer.fit(resumed, batches(), ckpt_path=f"{tmp_path}/last.ckpt")
    assert_same(resumed, whole, rtol=1e-5, atol=1e-6)


def test_manual_optimization_scales_half_precision() -> None:
    feature = FEATURES["manual optimization, 16-mixed"]
    cpu = fitted(ManualRegression(), JacobianDescent("upgrad"), **feature.trainer())
    module = fitted(ManualRegression(), JacobianDescent("upgrad"), **on_device(**feature.trainer()))
    assert_same(module, cpu, **FP16)

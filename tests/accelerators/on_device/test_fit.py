"""A real Trainer on the device: the weights of the CPU, at most one wait in a steady step.

Steps that certify a new kind of graph, or that a broken promise is watched for, are left out.
"""

from typing import Any

import lightning.pytorch as L
import pytest
from lightning.pytorch import Callback
from torch import nn
from torch.testing import assert_close

from lightning_jd import JacobianDescent, JDStrategy
from lightning_jd.errors import NonFiniteError
from lightning_jd.surfaces import _promise
from tests.helpers.lightning import QUIET, Regression, batches
from tests.pretended import DEVICE, host, synchronisations
from tests.pretended.lightning import on_device
from tests.surfaces.test_nonfinite import Exploding

STEADY = 4  # of 6 batches per epoch


class Watch(Callback):
    """Records the waits of every batch; it must come last, to see those of other callbacks."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.forward: list[str] = []

    def on_train_batch_start(self, *_: Any) -> None:
        self._recording = synchronisations()
        self._found = self._recording.__enter__()

    def on_before_zero_grad(self, *_: Any) -> None:  # after ``training_step``
        self.forward += [str(each) for each in self._found]

    def on_train_batch_end(self, *_: Any) -> None:
        self._recording.__exit__(None, None, None)
        self.batches.append([str(each) for each in self._found])


def fitted(module: nn.Module, callbacks: Any, **arguments: Any) -> dict[str, Any]:
    """The state after two epochs, on the host."""
    L.Trainer(**{**QUIET, "max_epochs": 2, "callbacks": callbacks, **arguments}).fit(
        module, batches()
    )
    return {name: host(tensor) for name, tensor in module.state_dict().items()}


ONE: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "upgrad": ("upgrad", {}, {}),
    "layers": ("upgrad", {}, {"groups": "layer"}),
    "low memory": ("upgrad", {}, {"memory": "low"}),
    "skip": ("upgrad", {}, {"nonfinite": "skip"}),
    "a pattern": ("upgrad", {}, {"params": "net.0.*"}),
    "half precision": ("upgrad", {"precision": "bf16-mixed"}, {}),
    "micro-batches": ("upgrad", {"accumulate_grad_batches": 2}, {}),
    "whole steps": ("upgrad", {"accumulate_grad_batches": 2}, {"accumulation": "step"}),
    "clipped": ("upgrad", {"gradient_clip_val": 0.1}, {}),
    "mean, skip": ("mean", {}, {"nonfinite": "skip"}),
    "mean, low memory": ("mean", {}, {"memory": "low"}),
}
each_form = pytest.mark.parametrize("form", ["instances", "tasks"])


@each_form
@pytest.mark.parametrize("case", ONE)
def test_a_step_waits_once_and_gives_the_weights_of_the_cpu(
    case: str, form: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_promise, "STEPS", 2)
    method, trainer, settings = ONE[case]
    watch = Watch()
    callbacks = [JacobianDescent(method, **settings), watch]
    found = fitted(Regression(form), callbacks, **on_device(**trainer))
    assert len(watch.batches) == 12
    for each in watch.batches[STEADY:]:
        assert len(each) <= 1, each
    if (
        trainer.get("accumulate_grad_batches") is None
    ):  # else it comes after earlier backward passes
        assert watch.forward == []
    expected = fitted(Regression(form), JacobianDescent(method, **settings), **trainer)
    tolerance = 2e-2 if case == "half precision" else 1e-5
    assert_close(found, expected, rtol=tolerance, atol=tolerance / 10)


@each_form
def test_logging_waits_in_steps_that_are_logged(form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_promise, "STEPS", 2)
    watch = Watch()
    log = {"every_n_steps": 3, "stationarity": False}
    fitted(Regression(form), [JacobianDescent("mean", log=log), watch], **on_device())
    logged = [(k + 1) % 3 == 0 for k in range(STEADY, 12)]
    assert [len(each) for each in watch.batches[STEADY:]] == [1 + is_logged for is_logged in logged]


def test_the_strategy_trains_on_the_device() -> None:
    strategy = JDStrategy("upgrad", device=str(DEVICE))
    found = fitted(Regression(), [], **on_device(strategy=strategy))
    assert_close(found, fitted(Regression(), JacobianDescent("upgrad")), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("what", ["loss", "gradient"])
@each_form
def test_what_is_not_finite_is_named_and_never_applied(form: Any, what: str) -> None:
    name = "'b'" if form == "tasks" else "'1'"
    word = "Losses" if what == "loss" else "Gradients"
    module = Exploding(form, what)
    with pytest.raises(NonFiniteError, match=rf"batch 2 of epoch 0: {word} must be finite.*{name}"):
        fitted(module, JacobianDescent("mean"), **on_device())
    assert all(bool(tensor.isfinite().all()) for tensor in module.parameters())

"""How often a Trainer waits for the device in a steady step, and when it learns of NaN.

Steps that certify a new kind of graph, or the first ones of it, are left out.
"""

from typing import Any

import lightning.pytorch as L
import pytest
from lightning.pytorch import Callback

from lightning_jd import JacobianDescent
from lightning_jd.errors import NonFiniteError
from tests.helpers.lightning import QUIET, Regression, batches
from tests.integration.test_nonfinite import Exploding
from tests.pretended import synchronisations
from tests.pretended.lightning import on_device

STEADY = 4  # of 6 batches per epoch


class Watch(Callback):
    """Records the waits of every batch; it must come last, to see those of other callbacks."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def on_train_batch_start(self, *_: Any) -> None:
        self._recording = synchronisations()
        self._found = self._recording.__enter__()

    def on_train_batch_end(self, *_: Any) -> None:
        self._recording.__exit__(None, None, None)
        self.batches.append([str(each) for each in self._found])


def waits(form: Any, method: Any, trainer: dict[str, Any], **settings: Any) -> list[list[str]]:
    watch = Watch()
    callbacks = [*([JacobianDescent(method, **settings)] if method else []), watch]
    arguments = on_device(**{**QUIET, "max_epochs": 2, "callbacks": callbacks, **trainer})
    L.Trainer(**arguments).fit(Regression(form), batches())
    return watch.batches[STEADY:]


ONE: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "upgrad": ("upgrad", {}, {}),
    "mgda": ("mgda", {}, {}),
    "layers": ("upgrad", {}, {"groups": "layer"}),
    "low memory": ("upgrad", {}, {"memory": "low"}),
    "skip": ("upgrad", {}, {"nonfinite": "skip"}),
    "half precision": ("upgrad", {"precision": "bf16-mixed"}, {}),
    "micro-batches": ("upgrad", {"accumulate_grad_batches": 2}, {}),
    "whole steps": ("upgrad", {"accumulate_grad_batches": 2}, {"accumulation": "step"}),
    "clipped": ("upgrad", {"gradient_clip_val": 0.1}, {}),
    "mean": ("mean", {}, {}),
    "mean, skip": ("mean", {}, {"nonfinite": "skip"}),
    "mean, low memory": ("mean", {}, {"memory": "low"}),
}
each_form = pytest.mark.parametrize("form", ["instances", "tasks"])


def test_ordinary_training_does_not_wait() -> None:
    assert waits("scalar", None, {}) == [[]] * (12 - STEADY)


class WatchForward(Callback):
    """Records what waits in ``training_step``, after which gradients are set to zero."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.steps = 0

    def on_train_batch_start(self, *_: Any) -> None:
        self._recording = synchronisations()
        self._waits = self._recording.__enter__()

    def on_before_zero_grad(self, *_: Any) -> None:
        self._recording.__exit__(None, None, None)
        self.found += [str(each) for each in self._waits]
        self.steps += 1


@each_form
@pytest.mark.parametrize("nonfinite", ["raise", "skip"])
def test_nothing_waits_in_the_forward_pass(form: Any, nonfinite: Any) -> None:
    watch = WatchForward()
    callbacks = [JacobianDescent("upgrad", nonfinite=nonfinite), watch]
    arguments = on_device(**{**QUIET, "max_epochs": 1, "callbacks": callbacks})
    L.Trainer(**arguments).fit(Regression(form), batches())
    assert watch.found == []
    assert watch.steps == 6


@each_form
@pytest.mark.parametrize("case", ONE)
def test_a_step_waits_once(case: str, form: str) -> None:
    method, trainer, settings = ONE[case]
    for found in waits(form, method, trainer, **settings):
        assert len(found) <= 1, found


@each_form
def test_logging_waits_in_steps_that_are_logged(form: str) -> None:
    found = waits(form, "mean", {}, log={"every_n_steps": 3, "stationarity": False})
    logged = [bool((STEADY + k + 1) % 3 == 0) for k in range(len(found))]
    assert [len(each) for each in found] == [1 + int(is_logged) for is_logged in logged]


@pytest.mark.parametrize("what", ["loss", "gradient"])
@each_form
def test_what_is_not_finite_is_never_applied(form: str, what: str) -> None:
    name = "'b'" if form == "tasks" else "'1'"
    word = "Losses" if what == "loss" else "Gradients"
    module = Exploding(form, what)
    arguments = on_device(**{**QUIET, "max_epochs": 1, "callbacks": [JacobianDescent("mean")]})
    with pytest.raises(NonFiniteError, match=rf"batch 2 of epoch 0: {word} must be finite.*{name}"):
        L.Trainer(**arguments).fit(module, batches())
    assert all(bool(tensor.isfinite().all()) for tensor in module.parameters())

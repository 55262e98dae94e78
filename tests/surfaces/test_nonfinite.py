"""NaN and infinity: an error that says where, or an objective that is left out and counted."""

from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch import Tensor

from lightning_jd.core import backward
from lightning_jd.errors import AggregatorError, NonFiniteError
from lightning_jd.surfaces import JacobianDescent, JDStrategy
from tests.helpers.lightning import (
    ManualRegression,
    Regression,
    assert_same_weights,
    batches,
    fit,
    moved,
)

BAD_BATCH = 2


class Exploding(Regression):
    """In one batch one objective is NaN (its loss), or has a gradient that is."""

    def __init__(self, form: Any, what: str) -> None:
        super().__init__(form)
        self.what = what
        self.batch = -1

    def spoiled(self, loss: Tensor) -> Tensor:
        if self.what == "loss":
            return loss * torch.nan
        # The value is finite; the derivative of the root at zero is not.
        return loss + (loss - loss).sqrt()

    def in_form(self, errors: Tensor) -> Any:
        losses = super().in_form(errors)
        self.batch = (self.batch + 1) % 6
        if self.batch != BAD_BATCH:
            return losses
        if isinstance(losses, dict):
            named = losses["loss"]
            return {"loss": {**named, "b": self.spoiled(named["b"])}}
        return torch.stack([losses[0], self.spoiled(losses[1]), *losses[2:]])


@pytest.mark.parametrize("accumulation", ["batch", "step"])
@pytest.mark.parametrize("form", ["tasks", "instances"])
@pytest.mark.parametrize(("what", "word"), [("loss", "Losses"), ("gradient", "Gradients")])
def test_the_error_names_objective_and_batch(
    what: str, word: str, form: str, accumulation: str
) -> None:
    pieces = 3 if accumulation == "step" else 1
    name = "'b'"
    if form == "instances":  # rows of a step are numbered from its first batch on
        name = "'9'" if accumulation == "step" and what == "gradient" else "'1'"
    match = rf"In batch {BAD_BATCH} of epoch 0: {word}.*{name}.*\. .*, or set nonfinite=.skip."
    with pytest.raises(NonFiniteError, match=match) as raised:
        fit(
            Exploding(form, what),
            callbacks=[JacobianDescent("upgrad", accumulation=accumulation)],
            accumulate_grad_batches=pieces,
        )
    assert ("in 3 micro-batches" in str(raised.value)) == (accumulation == "step")


@pytest.mark.parametrize("form", ["tasks", "instances"])
def test_weights_that_are_not_numbers_name_aggregator_and_batch(form: str) -> None:
    def careless(gramian: Tensor) -> Tensor:
        return gramian.diagonal() * torch.nan

    module = Regression(form)
    with pytest.raises(AggregatorError, match=r"In batch 0 of epoch 0: The aggregator careless"):
        fit(module, callbacks=[JacobianDescent(careless)])
    assert not moved(module, Regression())


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_task_is_left_out_and_counted(what: str) -> None:
    module, loop = Exploding("tasks", what), Regression("tasks")
    callback = JacobianDescent("upgrad", nonfinite="skip")
    with pytest.warns(RuntimeWarning, match="In batch 2 of epoch 0, 'b' of the objectives") as said:
        fit(module, callbacks=[callback])
    assert sum("nonfinite='skip'" in str(each.message) for each in said) == 1  # the first time
    assert callback.skipped == 2  # once per epoch
    optimizer = loop.configure_optimizers()
    for _ in range(2):
        for i, batch in enumerate(batches()):
            optimizer.zero_grad()
            losses = loop.in_form(loop.errors(batch))["loss"]
            if i == BAD_BATCH:
                del losses["b"]
            backward(losses, loop, "upgrad")
            optimizer.step()
    assert_same_weights(module, loop, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("what", ["loss", "gradient"])
@pytest.mark.parametrize("accumulation", ["batch", "step"])
@pytest.mark.parametrize("memory", ["fast", "low"])
def test_an_instance_is_left_out_and_counted(what: str, accumulation: str, memory: str) -> None:
    module = Exploding("instances", what)
    callback = JacobianDescent("upgrad", nonfinite="skip", accumulation=accumulation, memory=memory)
    pieces = 3 if accumulation == "step" else 1
    with pytest.warns(RuntimeWarning, match="of the objectives were NaN or infinite, and nonf"):
        fit(module, callbacks=[callback], accumulate_grad_batches=pieces)
    assert callback.skipped >= 2
    assert moved(module, Regression())
    assert all(torch.isfinite(parameter).all() for parameter in module.parameters())


@pytest.mark.filterwarnings("ignore:In batch 2 of epoch 0:RuntimeWarning")
def test_the_mean_that_is_shown_is_that_of_what_is_left() -> None:
    shown: list[Tensor] = []

    class Watch(Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, i: int) -> None:
            losses = module.errors(batch).mean(dim=1).detach()
            shown.append(losses[[0, 2, 3]].mean() if i == BAD_BATCH else losses.mean())

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
            torch.testing.assert_close(outputs["loss"], shown[-1])

    descent = JacobianDescent("upgrad", nonfinite="skip")
    fit(Exploding("instances", "loss"), callbacks=[descent, Watch()], max_epochs=1)
    assert len(shown) == 6


class AllBad(Regression):
    def in_form(self, errors: Tensor) -> Any:
        return super().in_form(errors * torch.nan)


class ManualAllBad(AllBad, ManualRegression):
    pass


class OneBad(Regression):
    def in_form(self, errors: Tensor) -> Any:
        losses = super().in_form(errors)["loss"]
        return {"loss": {**losses, "b": losses["b"] * torch.nan}}


def surfaces(**settings: Any) -> dict[str, dict[str, Any]]:
    """Arguments of the Trainer for every way to ask for it, with settings."""
    return {
        "callback": {"callbacks": [JacobianDescent("upgrad", **settings)]},
        "strategy": {"strategy": JDStrategy("upgrad", **settings)},
    }


@pytest.mark.parametrize("surface", ["callback", "strategy"])
@pytest.mark.parametrize(
    ("cls", "form", "found"),
    [(AllBad, "tasks", 18), (AllBad, "instances", 24), (ManualAllBad, "tasks", 18)],
)
@pytest.mark.filterwarnings("ignore:In batch 0 of epoch 0:RuntimeWarning")
def test_an_epoch_of_which_nothing_is_left_is_an_error(
    cls: Any, form: str, found: int, surface: str
) -> None:
    module = cls(form)
    message = f"infinity for all {found} in the 6 steps of epoch 0"
    with pytest.raises(NonFiniteError, match=message):
        fit(module, **surfaces(nonfinite="skip")[surface])
    assert not moved(module, Regression())


@pytest.mark.filterwarnings("ignore:In batch 0 of epoch 1:RuntimeWarning")
def test_every_epoch_is_looked_at_by_itself() -> None:
    class Later(Regression):
        def in_form(self, errors: Tensor) -> Any:
            return super().in_form(errors * torch.nan if self.current_epoch else errors)

    with pytest.raises(NonFiniteError, match="infinity for all 18 in the 6 steps of epoch 1"):
        fit(Later("tasks"), callbacks=[JacobianDescent(nonfinite="skip")])


@pytest.mark.filterwarnings("ignore:In batch 0 of epoch 0:RuntimeWarning")
def test_a_task_that_is_never_trained_is_named_after_the_epoch() -> None:
    with pytest.warns(RuntimeWarning, match="In epoch 0, 'b' was NaN or infinite in every step"):
        fit(OneBad("tasks"), max_epochs=1, callbacks=[JacobianDescent(nonfinite="skip")])


@pytest.mark.filterwarnings("ignore:In batch 2 of epoch 0:RuntimeWarning")
@pytest.mark.parametrize("nonfinite", ["skip", "raise"])
def test_the_number_is_logged(nonfinite: str) -> None:
    callback = JacobianDescent(nonfinite=nonfinite, log={"every_n_steps": 1})
    module = Exploding("tasks", "loss") if nonfinite == "skip" else Regression("tasks")
    logged = fit(module, callbacks=[callback]).callback_metrics
    assert logged.get("jd/skipped") == (torch.tensor(2.0) if nonfinite == "skip" else None)

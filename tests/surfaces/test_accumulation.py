"""accumulation="step": micro-batches give the weights of the big batch."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_jd.core import backward
from lightning_jd.surfaces import JacobianDescent
from tests.helpers.lightning import (
    Regression,
    assert_same_weights,
    batches,
    fit,
    moved,
)
from tests.surfaces.features import FEATURES

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.mark.parametrize(
    "aggregator",
    [
        "upgrad",
        "graddrop",
        *[pytest.param(n, marks=pytest.mark.slow) for n in ("mean", "mgda", "rgw")],
    ],
)
@pytest.mark.parametrize("form", ["instances", "matrix", "tasks"])
def test_equal_to_the_big_batch(form: str, aggregator: str) -> None:
    small, big = Regression(form), Regression(form)
    fit(
        small,
        batches(n=24, batch_size=2),
        callbacks=[JacobianDescent(aggregator, accumulation="step")],
        accumulate_grad_batches=3,
    )
    fit(big, batches(n=24, batch_size=6), callbacks=[JacobianDescent(aggregator)])
    assert moved(small, Regression())
    assert_same_weights(small, big, **CLOSE)


def test_every_micro_batch_counts_in_a_shorter_last_step() -> None:
    small, big = Regression("instances"), Regression("instances")
    fit(
        small,
        batches(n=14, batch_size=2),  # steps of 3, 3 and 1 micro-batches
        callbacks=[JacobianDescent("upgrad", accumulation="step")],
        accumulate_grad_batches=3,
    )
    fit(big, batches(n=14, batch_size=6), callbacks=[JacobianDescent("upgrad")])
    assert_same_weights(small, big, **CLOSE)


@pytest.mark.parametrize("name", ["clip by norm", "16-mixed", "16-mixed with overflow"])
def test_with_what_else_the_trainer_does(name: str) -> None:
    feature = FEATURES[name]
    small, big = Regression("instances"), Regression("instances")
    options = feature.trainer()
    fit(
        small,
        batches(n=24, batch_size=2),
        callbacks=[JacobianDescent("upgrad", accumulation="step")],
        accumulate_grad_batches=3,
        **options,
    )
    options = feature.trainer()
    fit(big, batches(n=24, batch_size=6), callbacks=[JacobianDescent("upgrad")], **options)
    assert moved(small, Regression())
    # UPGrad solves for weights from rows in half precision: their rounding is magnified.
    tolerance = {"rtol": 0.05, "atol": 5e-3} if "16" in name else CLOSE
    assert_same_weights(small, big, **tolerance)


class OneTaskPerBatch(Regression):
    """Tasks take turns, so that a step is needed to see a conflict at all."""

    turn = 0

    def in_form(self, errors: Tensor) -> Any:
        self.turn += 1
        return {"loss": {"abc"[self.turn % 3]: errors[:, self.turn % 3].mean()}}


def test_a_task_counts_where_it_is_present() -> None:
    module, loop = OneTaskPerBatch(), Regression()
    data = batches(n=24, batch_size=4)
    callback = JacobianDescent("upgrad", accumulation="step")
    fit(module, data, callbacks=[callback], accumulate_grad_batches=3)
    assert callback.report.names == ("b", "c", "a")
    optimizer = loop.configure_optimizers()
    for _ in range(2):
        for first, second, third in zip(*[iter(data)] * 3, strict=True):
            optimizer.zero_grad()
            losses = {
                name: loop.errors(batch)[:, column].mean()
                for name, batch, column in (("b", first, 1), ("c", second, 2), ("a", third, 0))
            }
            backward(losses, loop, "upgrad")
            optimizer.step()
    assert_same_weights(module, loop, **CLOSE)


def test_by_micro_batch_the_gradients_are_averaged() -> None:
    module, loop = Regression(), Regression()
    fit(
        module,
        callbacks=[JacobianDescent("upgrad")],
        accumulate_grad_batches=2,
        max_epochs=1,
        limit_train_batches=2,
    )
    first, second, *_ = batches()
    for batch in (first, second):
        backward(loop.in_form(loop.errors(batch)), loop, "upgrad")
    with torch.no_grad():
        for parameter in loop.parameters():
            parameter -= 0.05 * parameter.grad / 2
    assert_same_weights(module, loop)

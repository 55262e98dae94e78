"""A run says once, after its first steps, which promise it does not keep, why, and what to do."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_jd.report import Run, problems
from lightning_jd.surfaces import JacobianDescent
from lightning_jd.surfaces._promise import STEPS, BrokenPromiseWarning
from tests.helpers.lightning import Regression, batches, fit


class Prices(Regression):
    """Three tasks in conflict, one of them in units that make it a thousand times larger."""

    units = (1000.0, 1.0, 1.0)

    def in_form(self, errors: Tensor) -> Any:
        opposed = errors - 0.8 * errors.roll(1, dims=1)  # what helps a task harms the next one
        tasks = (opposed * torch.tensor(self.units)).mean(dim=0)
        return {"loss": dict(zip(("price", "kind", "sold"), tasks.unbind(), strict=True))}


def warned(aggregator: Any, module: Any = None, steps: int = STEPS) -> list[str]:
    module = module or Prices(lr=1e-6)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(
            module,
            batches(n=64, batch_size=8),
            callbacks=[JacobianDescent(aggregator)],
            max_epochs=-1,
            max_steps=steps,
        )
    return [str(each.message) for each in caught if each.category is BrokenPromiseWarning]


def test_with_the_default_every_task_is_protected_and_nothing_is_said() -> None:
    assert warned("upgrad") == []
    assert warned("dualproj") == []


@pytest.mark.parametrize("name", ["upgrad", "dualproj"])
def test_a_task_that_the_trace_gives_up_is_named(name: str) -> None:
    (text,) = warned({"name": name, "relative_to": "trace"}, steps=STEPS + 20)
    assert f"After {STEPS} steps: {name} claims to protect every task" in text
    assert "'kind'" in text
    assert "'sold'" in text
    assert "'price'" not in text
    assert "below the threshold of reg=0.0001, which is relative to the trace" in text
    assert "Set relative_to='row'" in text


def test_a_method_that_is_the_mean_is_named() -> None:
    (text,) = warned({"name": "crmogm", "aggregator": "mean"})
    assert "The update of crmogm is that of the mean (cosine 1.0000)" in text
    assert "The gradient of 'price' is more than ten times as long as any other" in text


def test_plain_training_and_short_runs_say_nothing() -> None:
    assert warned("mean") == []
    assert warned({"name": "upgrad", "relative_to": "trace"}, steps=STEPS - 1) == []


def test_a_large_reg_is_named() -> None:
    class Even(Prices):
        units = (1.0, 1.0, 1.0)

    assert warned("upgrad", Even(lr=1e-6)) == []
    (text,) = warned({"name": "upgrad", "reg": 10.0}, Even(lr=1e-6))
    assert "reg=10 concedes that much. Lower `reg`." in text


def test_rounding_noise_is_named() -> None:
    run = Run("upgrad", method={"protects": True, "reg": 1e-4, "relative_to": "row"})
    run.add(0, {"norm/a": 1.0, "norm/b": 1e-8, "worse/a": 0.0, "worse/b": 1.0})
    (problem,) = problems(run)
    assert "'b' (100%)" in problem.what
    assert "'normalized'" in problem.remedy

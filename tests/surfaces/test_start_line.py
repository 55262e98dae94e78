"""The line after the first step says what is slow, why, how much it costs and what to do."""

import warnings
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from lightning_jd.errors import ArgumentError
from lightning_jd.report import Run, problems
from lightning_jd.surfaces import JacobianDescent, JDStrategy
from lightning_jd.surfaces._promise import STEPS, BrokenPromiseWarning
from tests.helpers.lightning import ManualRegression, Regression, batches, fit

SLOW = (
    "Slow: net.0.weight, net.0.bias (one pass per row: NativeBatchNormBackward0 mixes rows, or "
    "hides them, so 4 passes a step instead of 1). Faster: BatchNorm in training mode"
)


def with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def lines_of(module: Any, surface: str = "callback", **settings: Any) -> list[str]:
    """What is said while a module is trained."""
    pieces = 2 if settings.get("accumulation") == "step" else 1
    arguments: dict[str, Any] = {"max_epochs": 1, "accumulate_grad_batches": pieces}
    if surface == "callback":
        arguments["callbacks"] = [JacobianDescent(**settings)]
    else:
        arguments["strategy"] = JDStrategy(**settings)
    said: list[str] = []
    with patch.object(JacobianDescent, "_inform", staticmethod(said.append)):
        fit(module, batches(n=8), **arguments)
    return said


@pytest.mark.parametrize(
    ("cls", "surface", "settings"),
    [
        (Regression, "callback", {}),
        (Regression, "strategy", {}),
        (Regression, "callback", {"aggregator": "graddrop"}),
        (Regression, "callback", {"accumulation": "step"}),
        (ManualRegression, "callback", {}),
    ],
)
def test_batch_norm_is_named_once_and_warned_of_once(
    cls: Any, surface: str, settings: dict[str, Any]
) -> None:
    module = cls("instances", net=with_batch_norm())
    with pytest.warns(RuntimeWarning, match="One backward pass per instance") as warned:
        said = lines_of(module, surface, **settings)
    assert sum("One backward pass" in str(each.message) for each in warned) == 1
    assert sum(SLOW in text for text in said) == 1
    assert "lightning_jd.doctor.replace_batch_norm(model)" in said[0]
    assert "batch_norm='frozen'" in said[0]


class Gate(torch.autograd.Function):
    """An operation with a parameter that nobody has written a rule for."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return gradient * weight, (gradient * x).sum(dim=0)


class Gated(Regression):
    def __init__(self) -> None:
        super().__init__("instances")
        self.gate = nn.Parameter(torch.ones(3))

    def errors(self, batch: list[Tensor]) -> Tensor:
        x, y = batch
        return (Gate.apply(self.net(x), self.gate) - y).square()


def test_an_operation_without_a_rule_is_named() -> None:
    (line,) = lines_of(Gated())
    assert "\nSlow: gate (there is no rule for GateBackward" in line
    assert "so 4 passes a step instead of 1). Faster: teach the tape with `register_rule(" in line


@pytest.mark.parametrize("form", ["tasks", "instances"])
def test_nothing_is_said_where_nothing_is_slow(form: Any) -> None:
    net = with_batch_norm() if form == "tasks" else None
    (line,) = lines_of(Regression(form, net=net))
    assert "Slow" not in line
    if form == "tasks":  # and a pass per task is what it is, not a defect
        assert "6 tensors: one backward pass per task." in line


def test_frozen_batch_norm_is_not_slow() -> None:
    (line,) = lines_of(Regression("instances", net=with_batch_norm()), batch_norm="frozen")
    assert "6 tensors: one backward pass for all objectives." in line
    assert "Slow" not in line
    assert "batch_norm='frozen'" in repr(JacobianDescent(batch_norm="frozen"))
    with pytest.raises(ArgumentError, match="`batch_norm` must be one of 'exact', 'frozen', got"):
        JacobianDescent(batch_norm="frosen")  # type: ignore[arg-type]


# --- A run says once, after its first steps, which promise it does not keep, why, and what to do


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

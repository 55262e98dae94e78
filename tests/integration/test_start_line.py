"""The line after the first step says what is slow, why, how much it costs and what to do."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from lightning_jd.errors import ArgumentError
from lightning_jd.surfaces import JacobianDescent, JDStrategy
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

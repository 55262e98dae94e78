"""Both ways to the gradients of tasks: one pass each, or all of them down the trunk together."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_jd.engines.tape.run import _passes
from tests.engines.oracle import TOLERANCE, check_tape
from tests.engines.zoo import CASES, default_dtype

TASKS = [name for name, build in CASES.items() if build.__module__.endswith("tasks")]
WAYS = ["_one_by_one", "_all_at_once"]


@pytest.fixture(params=WAYS)
def taken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Fills up with the ways that are taken, of which one is wanted."""
    ways: list[str] = []

    def noted(name: str) -> Callable[..., Any]:
        original = getattr(_passes.Passes, name)

        def way(*args: Any) -> Any:
            ways.append(name)
            return original(*args)

        return way

    for name in WAYS:
        monkeypatch.setattr(_passes.Passes, name, noted(name))
    together = request.param == "_all_at_once"
    monkeypatch.setattr(_passes.Passes, "_go_down_together", lambda self, trunk: together)
    return ways


@pytest.mark.parametrize("name", TASKS)
def test_every_way_is_exact_on(name: str, taken: list[str]) -> None:
    torch.manual_seed(0)
    with default_dtype(torch.float64):
        losses, named = CASES[name]()
        check_tape(losses, named, "fast", TOLERANCE[torch.float64])


def network(inputs: int, hidden: int, tasks: int) -> tuple[list[tuple[str, Tensor]], list[Tensor]]:
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden)).double()
    heads = nn.ModuleList(nn.Linear(hidden, 2) for _ in range(tasks)).double()
    features = trunk(torch.randn(4, inputs, dtype=torch.float64))
    losses = [head(features).square().mean() for head in heads]
    return [*trunk.named_parameters("trunk"), *heads.named_parameters("heads")], losses


def test_more_tasks_than_go_down_together(taken: list[str], request: Any) -> None:
    named, losses = network(3, 16, tasks=11)
    check_tape(losses, named, "fast", 1e-10)
    assert set(taken) == {request.node.callspec.params["taken"]}


def test_tasks_of_which_some_do_not_reach_all_of_the_trunk(taken: list[str]) -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(3, 16).double(), nn.Linear(16, 16).double()
    heads = nn.ModuleList(nn.Linear(16, 2) for _ in range(11)).double()
    early = first(torch.randn(4, 3, dtype=torch.float64)).tanh()
    late = second(early)
    losses = [head(late if k in (0, 3, 10) else early).exp().mean() for k, head in enumerate(heads)]
    named = [*first.named_parameters("first"), *second.named_parameters("second")]
    check_tape(losses, [*named, *heads.named_parameters("heads")], "fast", 1e-10)


def test_a_cpu_takes_one_pass_for_each_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice must not depend on a clock: a run that is resumed rounds as before."""
    monkeypatch.setattr(_passes.Passes, "_all_at_once", None)
    named, losses = network(3, 64, tasks=2)
    check_tape(losses, named, "fast", 1e-10)


class Unbatchable(torch.autograd.Function):
    """An operation whose gradient looks at values, which vmap refuses."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * (2.0 if gradients[0].sum().item() > 1e9 else 1.0)


def test_code_that_takes_no_batched_gradients_is_tried_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[bool] = []

    def is_slim(self: _passes.Passes, trunk: object) -> bool:
        tried.append(True)
        return True

    monkeypatch.setattr(_passes.Passes, "_is_slim", is_slim)
    monkeypatch.setattr(_passes.Passes, "_is_on_host", False)
    torch.manual_seed(0)
    trunk, heads = nn.Linear(3, 16).double(), nn.ModuleList(nn.Linear(16, 2) for _ in range(3))
    named = [*trunk.named_parameters("trunk"), *heads.double().named_parameters("heads")]
    for _ in range(2):
        features = Unbatchable.apply(trunk(torch.randn(4, 3, dtype=torch.float64)))
        losses = [head(features).square().mean() for head in heads]
        check_tape(losses, named, "fast", 1e-10)
    assert tried == [True]

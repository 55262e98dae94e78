"""Both ways to the gradients of tasks: one pass each, or all of them down the trunk together."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_jd.engines.tape.run import _passes
from tests.engines.oracle import TOLERANCE, check_tape
from tests.engines.zoo import CASES, default_dtype

TASKS = [name for name, build in CASES.items() if build.__module__.endswith("tasks")]
WAYS = ["one by one", "all at once"]


def ways_offered(monkeypatch: pytest.MonkeyPatch, wanted: str) -> list[str]:
    """Fills up with the ways that are offered; the wanted one is taken wherever it is."""
    offered: list[str] = []

    def choose(_: Any, ways: Mapping[str, Callable[[], object]], unless: Any = ()) -> str:
        offered.extend(ways)
        return wanted if wanted in ways else next(iter(ways))

    monkeypatch.setattr(_passes, "fastest", choose)
    return offered


@pytest.fixture(params=WAYS)
def offered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(_passes.Passes, "_is_slim", lambda self, trunk: True)
    return ways_offered(monkeypatch, request.param)


@pytest.mark.parametrize("name", TASKS)
def test_every_way_is_exact_on(name: str, offered: list[str]) -> None:
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


def test_more_tasks_than_go_down_together(offered: list[str]) -> None:
    named, losses = network(3, 16, tasks=11)
    check_tape(losses, named, "fast", 1e-10)
    assert set(offered) == set(WAYS)


@pytest.mark.parametrize(("hidden", "expected"), [(64, WAYS), (3, WAYS[:1])])
def test_tasks_go_down_together_only_where_their_gradients_are_few(
    hidden: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    offered = ways_offered(monkeypatch, WAYS[0])
    named, losses = network(3, hidden, tasks=2)
    check_tape(losses, named, "fast", 1e-10)
    assert offered == expected


def test_convolutions_on_a_cpu_are_not_tried_together(offered: list[str]) -> None:
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 9)).double()
    heads = nn.ModuleList(nn.Linear(9, 2) for _ in range(3)).double()
    features = trunk(torch.randn(4, 1, 4, 4, dtype=torch.float64))
    losses = [head(features).square().mean() for head in heads]
    named = [*trunk.named_parameters("trunk"), *heads.named_parameters("heads")]
    check_tape(losses, named, "fast", 1e-10)
    assert set(offered) == {"one by one"}

"""Preferences by the name of the task, also where tasks come and go."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_jd import backward
from lightning_jd.aggregators import ConFIG, DualProj, Step, UPGrad, resolve
from lightning_jd.errors import ArgumentError

NAMES = ("depth", "normals", "edges")
NUMBERS = {"normals": 1.0, "edges": 0.5, "depth": 2.0, "never there": 7.0}
METHODS = [UPGrad, DualProj, ConFIG]


def gramian(m: int) -> Tensor:
    J = torch.randn(m, 6, generator=torch.Generator().manual_seed(m), dtype=torch.float64)
    return J @ J.T


@pytest.mark.parametrize("cls", METHODS)
@pytest.mark.parametrize("names", [NAMES, NAMES[:2], NAMES[1:], NAMES[::-1]])
def test_by_name_is_by_position_for_the_tasks_that_are_there(cls: Any, names: Any) -> None:
    G = gramian(len(names))
    expected = cls([NUMBERS[name] for name in names]).weigh(G, Step(names))
    assert_close(cls(NUMBERS).weigh(G, Step(names)), expected)


@pytest.mark.parametrize("cls", METHODS)
def test_a_task_without_a_preference_is_named(cls: Any) -> None:
    with pytest.raises(
        ArgumentError, match=r"every objective, got none for 'new'\. Known: 'depth'"
    ):
        cls({"depth": 1.0}).weigh(gramian(2), Step(("depth", "new")))


@pytest.mark.parametrize("preference", [{"a": 0.0}, {"a": "much"}, {}, ["much"], 3])
def test_wrong_preferences_are_refused(preference: Any) -> None:
    with pytest.raises(ArgumentError, match="`preference` must be positive numbers, one per"):
        UPGrad(preference)


def test_in_a_step_and_from_yaml() -> None:
    model = nn.Linear(4, 3)
    losses = dict(zip(NAMES, model(torch.ones(2, 4)).square().mean(dim=0), strict=True))
    spec = {"name": "upgrad", "preference": NUMBERS, "reg": 0.0}
    by_name = backward(losses, model, spec, retain_graph=True).weights
    by_order = backward(losses, model, UPGrad([2.0, 1.0, 0.5], reg=0)).weights
    assert_close(by_name, by_order)
    assert repr(resolve(spec)).startswith("UPGrad(preference={'normals': 1.0")

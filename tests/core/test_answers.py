"""Answers of an aggregator that are no update are refused before anything moves."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_jd import backward
from lightning_jd.aggregators import Aggregator, GramianAggregator, resolve
from lightning_jd.core import collect, compute_update
from lightning_jd.engines import Objectives, named_parameters_of
from lightning_jd.errors import AggregatorError, GraphError
from tests.helpers.two_processes import run_in_two_processes


def divides_by_zero(gramian: Tensor) -> Tensor:
    weights = torch.ones(len(gramian)).to(gramian)
    weights[1] = torch.nan
    return weights


class Unbounded(Aggregator):
    """Needs the Jacobian, and answers with an infinite entry."""

    def aggregate(self, jacobian: Tensor) -> Tensor:
        direction = jacobian.mean(dim=0)
        direction[0] = torch.inf
        return direction


class Short(GramianAggregator):
    def weights(self, gramian: Tensor) -> Tensor:
        return gramian.new_ones(len(gramian) - 1)


class Listed(GramianAggregator):
    def weights(self, gramian: Tensor) -> Any:
        return [1.0] * len(gramian)


CASES: dict[str, tuple[Any, str]] = {
    "function": (divides_by_zero, r"divides_by_zero.*NaN or infinity in 1 of 3 \(position 1\)"),
    "jacobian": (Unbounded(), r"Unbounded.*one number per column.*\(position 0\)"),
    "shape": (Short(), r"Short must return one weight per objective, shape \(3,\), got.*\(2,\)"),
    "type": (Listed(), r"Listed.*a tensor of shape \(3,\), got list"),
}
case = pytest.mark.parametrize(("aggregator", "message"), CASES.values(), ids=CASES)


def losses_of(model: nn.Module) -> dict[str, Tensor]:
    return dict(zip("abc", model(torch.ones(2, 4)).square().mean(dim=0), strict=True))


@case
@pytest.mark.parametrize("groups", [None, "layer"])
def test_on_one_process(aggregator: Any, message: str, groups: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    with pytest.raises(AggregatorError, match=message):
        backward(losses_of(model), model, aggregator, groups=groups)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("keeps", [False, True])
def test_losses_that_reach_no_parameter_are_refused(keeps: bool) -> None:
    x = torch.ones(3, requires_grad=True)
    rows = collect(named_parameters_of(nn.Linear(4, 3)), keeps=keeps)
    rows.add(Objectives.of(x * 2))
    with pytest.raises(GraphError, match=r"must depend on a parameter, got .* reach"):
        compute_update(rows, resolve("upgrad"))


def on_both(rank: int, folder: Path) -> None:
    for aggregator, message in CASES.values():
        for keeps in (False, True):
            model = nn.Linear(4, 3)
            rows = collect(named_parameters_of(model), keeps=keeps)
            rows.add(Objectives.of(losses_of(model)))
            with pytest.raises(AggregatorError, match=message):
                compute_update(rows, resolve(aggregator))


@pytest.mark.slow
def test_on_all_processes(tmp_path: Path) -> None:
    run_in_two_processes(on_both, tmp_path)

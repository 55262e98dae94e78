"""A graph is followed if it is the same but for its numbers, and in no other case."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lightning_jd.engines import Objectives
from lightning_jd.engines.tape.graph import NESTED, Trail, records_of, walk
from tests.engines.zoo import CASES

Parameters = list[Tensor]


def trail_of(losses: Tensor, parameters: Parameters) -> Trail:
    graph = walk([losses], parameters)
    return Trail(graph, records_of(graph.signature))


@pytest.fixture
def parameters() -> Parameters:
    return [nn.Parameter(torch.randn(4, 4)) for _ in range(3)]


def chain(x: Tensor, parameters: Parameters) -> Tensor:
    return ((x @ parameters[0]).relu() @ parameters[1]).sum(dim=1)


def test_a_graph_with_other_numbers_is_followed(parameters: Parameters) -> None:
    trail = trail_of(chain(torch.randn(6, 4), parameters), parameters)
    losses = chain(torch.randn(6, 4), parameters)
    assert trail.follow([losses], parameters) == walk([losses], parameters).nodes


def windows(x: Tensor, parameters: Parameters, rows: int) -> Tensor:
    """A softmax over all entries of some instances, whose number no other shape tells."""
    h = x @ parameters[0]
    return h.view(rows, -1).softmax(dim=1).view(h.shape).sum(dim=1)


def twice(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return ((x @ first).sin() + (x @ second).sin()).sum(dim=1)


def shared(x: Tensor, weight: Tensor, *, once: bool) -> Tensor:
    """One activation that is used twice, or two that are equal."""
    h = (x @ weight).sin()
    again = h if once else (x @ weight).sin()
    return (h * again).sum(dim=1)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda x, p: ((x @ p[0]).tanh() @ p[1]).sum(dim=1), id="another operation"),
        pytest.param(lambda x, p: ((x @ p[0]).relu() @ p[2]).sum(dim=1), id="another parameter"),
        pytest.param(lambda x, p: ((x @ p[0]).relu() @ p[1]).sum(dim=0), id="another argument"),
        pytest.param(
            lambda x, p: ((x @ p[0]).relu() @ p[1].detach()).sum(dim=1), id="an input is missing"
        ),
        pytest.param(lambda x, p: chain(torch.cat([x, x]), p), id="other sizes"),
        pytest.param(lambda x, p: ((x @ p[0]) @ p[1]).sum(dim=1), id="an operation is missing"),
    ],
)
def test_another_graph_is_not_followed(
    parameters: Parameters, change: Callable[[Tensor, Parameters], Tensor]
) -> None:
    x = torch.randn(6, 4)
    trail = trail_of(chain(x, parameters), parameters)
    assert trail.follow([change(x, parameters)], parameters) is None


def test_a_shape_inside_that_no_other_shape_tells_is_looked_at(parameters: Parameters) -> None:
    x = torch.randn(6, 4)
    trail = trail_of(windows(x, parameters, 6), parameters)
    assert trail.follow([windows(x, parameters, 6)], parameters) is not None
    assert trail.follow([windows(x, parameters, 3)], parameters) is None


def test_equal_activations_are_not_one_that_is_used_twice(parameters: Parameters) -> None:
    x = torch.randn(6, 4)
    for once in (True, False):
        trail = trail_of(shared(x, parameters[0], once=once), parameters)
        assert trail.follow([shared(x, parameters[0], once=once)], parameters) is not None
        assert trail.follow([shared(x, parameters[0], once=not once)], parameters) is None


def test_a_leaf_that_is_tracked_later_is_noticed(parameters: Parameters) -> None:
    x, (first, second, third) = torch.randn(6, 4), parameters
    trail = trail_of(twice(x, first, second), [first])
    assert trail.follow([twice(x, first, third)], [first]) is not None
    assert trail.follow([twice(x, first, second)], [first, second]) is None
    assert trail.follow([twice(x, first, first)], [first]) is None


def test_a_constant_that_broadcasts_is_noticed(parameters: Parameters) -> None:
    def scaled(factor: Tensor) -> Tensor:
        return ((torch.ones(6, 1) * parameters[0][:1, :1]) * factor).flatten(1).sum(dim=1)

    trail = trail_of(scaled(torch.ones(6, 1)), parameters)
    assert trail.follow([scaled(torch.ones(6, 4))], parameters) is None


def test_nested_tensors_are_never_followed() -> None:
    weight = nn.Parameter(torch.randn(3, 3))

    def losses() -> Tensor:
        parts = [torch.randn(2, 3), torch.randn(4, 3)]
        nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
        return (nested @ weight).to_padded_tensor(0.0).sum(dim=(1, 2))

    trail = trail_of(losses(), [weight])
    assert trail.follow([losses()], [weight]) is None


@pytest.mark.parametrize("name", CASES)
def test_a_graph_of_the_zoo_is_followed(name: str) -> None:
    losses, named = CASES[name]()
    outputs, tensors = Objectives.of(losses).outputs, [tensor for _, tensor in named]
    graph = walk(outputs, tensors)
    records = records_of(graph.signature)
    followed = Trail(graph, records).follow(outputs, tensors)
    is_nested = any(record.name == NESTED for record in records)
    assert followed == (None if is_nested else graph.nodes)

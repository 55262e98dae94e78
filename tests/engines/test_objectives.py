"""Losses in every form that user code gives them, and every way to get them wrong."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_jd.engines import Objectives
from lightning_jd.errors import ArgumentError, GraphError, ShapeError


@pytest.fixture
def x() -> Tensor:
    return torch.arange(1.0, 7.0, requires_grad=True)


def test_a_vector_has_one_objective_per_instance(x: Tensor) -> None:
    losses = x.square()
    objectives = Objectives.of(losses)
    assert (objectives.kind, objectives.m) == ("instances", 6)
    assert objectives.names == ("0", "1", "2", "3", "4", "5")
    assert objectives.losses is losses


def test_a_matrix_has_one_objective_per_instance_and_task(x: Tensor) -> None:
    objectives = Objectives.of(x.view(3, 2) * 2)
    assert (objectives.kind, objectives.m) == ("instances_tasks", 6)
    assert objectives.names == ("0/0", "0/1", "1/0", "1/1", "2/0", "2/1")


def test_a_dict_keeps_its_names_and_drops_missing_tasks(x: Tensor) -> None:
    losses = {"depth": x[0] * 1, "edges": None, "normals": x.sum()}
    objectives = Objectives.of(losses)
    assert (objectives.kind, objectives.names) == ("tasks", ("depth", "normals"))
    assert objectives.losses == (losses["depth"], losses["normals"])


def test_a_list_is_named_by_position_even_where_a_task_is_missing(x: Tensor) -> None:
    objectives = Objectives.of([x[0] * 1, None, x.sum()])
    assert (objectives.kind, objectives.names) == ("tasks", ("0", "2"))


def test_a_scalar_is_one_task(x: Tensor) -> None:
    objectives = Objectives.of(x.sum())
    assert (objectives.kind, objectives.names, objectives.m) == ("tasks", ("loss",), 1)


def test_objectives_are_passed_on(x: Tensor) -> None:
    objectives = Objectives.of(x.square())
    assert Objectives.of(objectives) is objectives


def test_rows_overrides_what_the_type_says(x: Tensor) -> None:
    assert Objectives.of(x.square(), rows="tasks").kind == "tasks"
    assert Objectives.of([x.sum(), x.prod()], rows="instances").kind == "instances"
    assert Objectives.of(x.view(3, 2) * 1, rows="tasks").kind == "instances_tasks"


@pytest.mark.parametrize("form", ["vector", "matrix", "list"])
def test_cotangents_give_the_gradient_of_the_weighted_sum(x: Tensor, form: str) -> None:
    squares = x.square()
    losses = {"vector": squares, "matrix": squares.view(2, 3), "list": list(squares.unbind())}
    objectives, w = Objectives.of(losses[form]), torch.linspace(-1, 1, 6, dtype=torch.float64)
    (g,) = torch.autograd.grad(objectives.outputs, x, objectives.cotangents(w), retain_graph=True)
    torch.testing.assert_close(g, (2 * x * w).float().detach())
    output, cotangent = objectives.row(4)
    (row,) = torch.autograd.grad(output, x, cotangent)
    torch.testing.assert_close(row, 10.0 * torch.eye(6)[4])


def test_values_are_detached_and_flat(x: Tensor) -> None:
    for losses in (x * 1, x.view(2, 3) * 1, list(x.unbind())):
        values = Objectives.of(losses).values()
        assert not values.requires_grad
        torch.testing.assert_close(values, torch.arange(1.0, 7.0))


def test_losses_that_are_not_finite_are_named(x: Tensor) -> None:
    objectives = Objectives.of({"a": x[0] * 1, "b": x[1] / 0, "c": x[2] * torch.nan})
    assert objectives.nonfinite() == ("b", "c")


def test_finite_losses_pass(x: Tensor) -> None:
    assert Objectives.of(x * 1).nonfinite() == ()


X = torch.arange(1.0, 7.0, requires_grad=True)
REFUSED: list[tuple[object, type[Exception], str]] = [
    *[
        (nothing, ShapeError, r"must hold at least one loss, got none\. Skip")
        for nothing in ({}, [], {"a": None}, [None, None])
    ],
    *[
        (torch.zeros(shape, requires_grad=True), ShapeError, r"loss, got shape \(.*\)\. Skip empty")
        for shape in ((0,), (0, 3), (3, 0))
    ],
    (torch.zeros(2, 3, 4), ShapeError, r"\(m,\) or \(b, k\), .*, got \(2, 3, 4\)\. Average"),
    ({"a": X.sum(), "b": X * 1}, ShapeError, r"`losses\['b'\]` must be a scalar, got shape \(6,\)"),
    (torch.ones(3), GraphError, "`losses` must require a gradient, got a tensor without"),
    ({"a": X.sum(), "b": torch.ones(())}, GraphError, r"`losses\['b'\]` must require a gradient"),
    ({1: X.sum(), "1": X.prod()}, ArgumentError, "must have distinct names, got '1' twice"),
    (
        [X.sum(), X.double().sum()],
        ArgumentError,
        r"same dtype, got torch.float32, torch.float64",
    ),
    *[
        (other, ArgumentError, "a tensor, a list of scalars or a dict .*, got ")
        for other in (3.0, "loss", None)
    ],
]


@pytest.mark.parametrize(("losses", "error", "message"), REFUSED)
def test_what_is_no_loss_is_refused(losses: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Objectives.of(losses)

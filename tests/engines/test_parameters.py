"""Names, selection, and which task reaches which parameter."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_jd.engines import Objectives, named_parameters_of, select
from lightning_jd.errors import ArgumentError, GraphError


class TwoTasks(nn.Module):
    """A trunk of one layer, a head per task, and a layer that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, 4)
        self.depth = nn.Linear(4, 1)
        self.edges = nn.Linear(4, 1)
        self.unused = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.trunk(x).tanh()
        return {"depth": self.depth(h).square().mean(), "edges": self.edges(h).square().mean()}


def names(pairs: list[tuple[str, Tensor]]) -> list[str]:
    return [name for name, _ in pairs]


def shared(losses: object) -> list[str]:
    return names(select(Objectives.of(losses), MODEL_PARAMETERS, "shared").selected)


MODEL = TwoTasks()
MODEL_PARAMETERS = named_parameters_of(MODEL)
X = torch.randn(3, 4)
TRUNK = ["trunk.weight", "trunk.bias"]


@pytest.mark.parametrize(
    "form",
    [
        lambda m: m,
        lambda m: m.named_parameters(),
        lambda m: dict(m.named_parameters()),
        lambda m: list(m.named_parameters()),
    ],
)
def test_names_come_from_the_module(form: Callable[[nn.Module], object]) -> None:
    assert names(named_parameters_of(form(nn.Linear(2, 1)))) == ["weight", "bias"]


def test_tensors_are_named_by_position_and_tied_ones_come_once() -> None:
    layer = nn.Linear(2, 1)
    assert names(named_parameters_of(layer.parameters())) == ["0", "1"]
    found = named_parameters_of([layer.weight, layer.weight, layer.bias])
    assert names(found) == ["0", "2"]
    assert names(named_parameters_of(layer.weight)) == ["0"]


def test_frozen_parameters_are_left_out() -> None:
    layer = nn.Linear(2, 1)
    layer.weight.requires_grad_(False)
    assert names(named_parameters_of(layer)) == ["bias"]


def test_nothing_to_train_is_refused() -> None:
    with pytest.raises(GraphError, match=r"must hold a tensor that requires a gradient, got none"):
        named_parameters_of([])


def test_a_tensor_that_is_computed_is_refused() -> None:
    with pytest.raises(GraphError, match=r"leaves of the graph, got '0' as the result of MulBack"):
        named_parameters_of([torch.ones(2, requires_grad=True) * 2])


def test_one_name_for_two_tensors_is_refused() -> None:
    pairs = [*nn.Linear(2, 1).named_parameters(), *nn.Linear(2, 1).named_parameters()]
    with pytest.raises(ArgumentError, match=r"distinct names, got 'weight' for two tensors\. Pass"):
        named_parameters_of(pairs)


def test_what_is_no_tensor_is_refused() -> None:
    with pytest.raises(
        ArgumentError, match=r"`model` must be a module or hold tensors, got float as '0'"
    ):
        named_parameters_of([1.0])
    with pytest.raises(
        ArgumentError, match=r"a module, tensors or \(name, tensor\) pairs, got int"
    ):
        named_parameters_of(3)


def test_shared_selects_the_trunk_and_leaves_the_heads_plain() -> None:
    selection = select(Objectives.of(MODEL(X)), MODEL_PARAMETERS, "shared")
    assert names(selection.selected) == TRUNK
    assert names(selection.plain) == ["depth.weight", "depth.bias", "edges.weight", "edges.bias"]


@pytest.mark.parametrize(
    "disguise",
    [
        lambda a, b: list(torch.stack([a, b]).unbind()),
        lambda a, b: [loss for loss in torch.stack([a, b])],  # noqa: C416  # indexing
        lambda a, b: [torch.stack([a, b])[0], torch.stack([a, b])[1]],
        lambda a, b: Objectives.of(torch.stack([a, b]), rows="tasks"),
        lambda a, b: torch.stack([a * torch.ones(3), b * torch.ones(3)], dim=1),
    ],
    ids=["unbound", "iterated", "indexed", "vector_of_tasks", "instances_and_tasks"],
)
def test_stacking_the_losses_does_not_hide_the_heads(
    disguise: Callable[[Tensor, Tensor], object],
) -> None:
    losses = MODEL(X)
    assert shared(disguise(losses["depth"], losses["edges"])) == TRUNK


def test_a_head_that_two_tasks_use_is_shared() -> None:
    losses = MODEL(X)
    losses["both"] = losses["depth"] + losses["edges"]
    assert len(shared(losses)) == 6


@pytest.mark.parametrize("which", [None, 3, ["a", 3], {"a": 1}])
def test_a_selection_of_another_type_is_refused(which: Any) -> None:
    layer = nn.Linear(2, 1)
    objectives = Objectives.of(layer(torch.ones(3, 2)).flatten())
    with pytest.raises(ArgumentError, match=r"`select` \(in Lightning: `params`\) must be 'all'"):
        select(objectives, named_parameters_of(layer), which)


def test_shared_needs_tasks() -> None:
    with pytest.raises(
        ArgumentError, match=r"are those of several tasks, got one tensor .* 'instances'"
    ):
        shared(MODEL.trunk(X).square().sum(1))
    with pytest.raises(ArgumentError, match=r"are those of several tasks, .* 'instances_tasks'"):
        shared(MODEL.trunk(X).square())


class Both(torch.autograd.Function):
    """Two losses out of one function that autograd cannot look into."""

    @staticmethod
    def forward(ctx: object, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a.clone(), b.clone()

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> tuple[Tensor, ...]:
        return gradients


def test_tasks_that_cannot_be_told_apart_are_refused() -> None:
    losses = MODEL(X)
    with pytest.raises(ArgumentError, match=r"one compiled or custom function \(BothBackward\)"):
        shared(list(Both.apply(losses["depth"], losses["edges"])))


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        ("trunk.*", TRUNK),
        (["trunk.weight", "*.bias"], [*TRUNK, "depth.bias", "edges.bias", "unused.bias"]),
        (lambda name, tensor: tensor.ndim == 1 and "trunk" in name, ["trunk.bias"]),
    ],
    ids=["pattern", "patterns", "function"],
)
def test_the_rest_of_a_selection_is_plain(which: object, expected: list[str]) -> None:
    selection = select(Objectives.of(MODEL(X)), MODEL_PARAMETERS, which)
    assert sorted(names(selection.selected)) == sorted(expected)
    assert {*names(selection.selected), *names(selection.plain)} == set(names(MODEL_PARAMETERS))


def test_a_selection_without_a_match_is_refused() -> None:
    objectives = Objectives.of(MODEL(X))
    with pytest.raises(ArgumentError, match=r"the pattern 'trnk.\*' matches none of trunk.weight,"):
        select(objectives, MODEL_PARAMETERS, ["trunk.*", "trnk.*"])
    with pytest.raises(ArgumentError, match=r"but the function accepts none of .*Besides patterns"):
        select(objectives, MODEL_PARAMETERS, lambda name, tensor: False)


class _Own(nn.Module):
    """Names its parameters itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 1)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        return ((f"own/{name}", p) for name, p in self.inner.named_parameters())


class _Empty(nn.ModuleList):
    """Has no entries, and a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))


def test_the_parameters_of_a_module_are_those_that_it_names() -> None:
    shared = nn.Linear(2, 2)
    tied = nn.Linear(2, 2)
    tied.weight = shared.weight
    missing = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU())
    missing.register_module("nothing", None)
    nested = nn.ModuleDict({"a": missing, "b": nn.Sequential(shared, shared, tied), "c": _Empty()})
    for module in (nested, nn.TransformerEncoderLayer(4, 2, 8), MODEL, nn.LSTM(2, 2, 2), _Own()):
        expected = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        found = named_parameters_of(module)
        assert names(found) == [name for name, _ in expected]
        assert all(a is b for (_, a), (_, b) in zip(found, expected, strict=True))

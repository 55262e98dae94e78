"""The graph is freed in the only pass; the low-memory mode takes two where much would be kept."""

from collections.abc import Iterator
from unittest.mock import Mock, patch

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from lightning_jd.core import backward
from lightning_jd.engines import Objectives, Tape, _graph
from lightning_jd.engines.tape import (
    NotApplicableError,
    Rows,
    Site,
    register_rule,
    unregister_rule,
)
from lightning_jd.engines.tape.contributions import _pieces
from lightning_jd.engines.tape.graph import SHOWS_HOOKS
from lightning_jd.errors import GraphError
from tests.helpers.rows import flat_gradient

#: Before torch 2.13, saved tensors hide their hooks, so that the graph is kept.
frees_graphs = pytest.mark.skipif(not SHOWS_HOOKS, reason="needs torch 2.13")


def images() -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(8 * 64, 2)).double(), torch.randn(6, 3, 12, 12).double()


def sequences() -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)]
    return nn.Sequential(*layers).double(), torch.randn(6, 50, 64).double()


def step(model: nn.Sequential, x: Tensor, memory: str, *, keep: bool = False) -> tuple[int, Tensor]:
    """The passes through the graph that a step takes, and the gradient that it leaves."""
    losses = model(x).square().flatten(1).sum(dim=1)
    model.zero_grad()
    with patch.object(_graph, "_engine", Mock(wraps=_graph._engine)) as engine:
        backward(losses, model, "upgrad", memory=memory, retain_graph=keep)
    passes = engine.run_backward.call_count
    return passes, flat_gradient(model)


@frees_graphs
@pytest.mark.parametrize(("build", "expected"), [(images, 1), (sequences, 2)])
def test_there_is_a_second_pass_only_where_much_would_be_kept(build, expected) -> None:  # type: ignore[no-untyped-def]
    model, x = build()
    step(model, x, "low")  # is certified, and shows that the rules apply
    step(model, x, "low")  # is certified if it keeps what the first step did not
    passes, gradient = step(model, x, "low")
    assert passes == expected
    assert_close(gradient, step(model, x, "fast")[1])
    step(model, x, "low", keep=True)  # is certified
    assert step(model, x, "low", keep=True)[0] == 2


@frees_graphs
@pytest.mark.parametrize("memory", ["fast", "low"])
def test_the_one_pass_frees_what_the_operations_have_saved(memory: str) -> None:
    model, x = images()
    named = list(model.named_parameters())
    for _ in range(2):
        losses = model(x).square().sum(dim=1)
        Tape(Objectives.of(losses), named, memory=memory).gramian()
    freed = Objectives.of(model(x).square().sum(dim=1))
    Tape(freed, named, memory=memory, retain_graph=False).gramian()  # is certified
    losses.sum().backward(retain_graph=True)  # a tape keeps the graph unless told otherwise
    tape = Tape(Objectives.of(losses), named, memory=memory, retain_graph=False)
    expected = tape.gramian()
    with pytest.raises(RuntimeError, match="second time"):
        losses.sum().backward()
    assert_close(tape.gramian(), expected)  # computed once
    gradients = tape.gradients(torch.ones(6, dtype=torch.float64))
    for gradient, parameter in zip(gradients, model.parameters(), strict=True):
        assert_close(gradient, parameter.grad)


def test_a_checkpointed_model_is_exact_in_both_modes() -> None:
    model, x = images()
    inner = model[2:4]
    for memory in ("low", "low", "fast"):
        losses = model[4:](checkpoint(inner, model[:2](x), use_reentrant=False)).square().sum(dim=1)
        model.zero_grad()
        backward(losses, model, "mean", memory=memory)
        found = [p.grad for p in model.parameters()]
        expected = torch.autograd.grad(model(x).square().sum() / 6, list(model.parameters()))
        for gradient, plain in zip(found, expected, strict=True):
            assert_close(gradient, plain)


class Divided(nn.Module):
    """The division is no lowest operation, so that the pass executes it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(200, 200).double()
        self.divisor = nn.Parameter(torch.full((200,), 2.0, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (self.inner(x) / self.divisor).exp().sum(dim=1)


@pytest.fixture
def moody_rule() -> Iterator[list[bool]]:
    refuses: list[bool] = []

    def rule(site: Site) -> Rows:
        if refuses:
            raise NotApplicableError
        pulled = -site.cotangent * site.saved("self") / site.saved("other") ** 2
        return Rows(site.owners.split_cotangent(pulled).sum(dim=1), site.placements[0])

    register_rule("DivBackward0", 1)(rule)
    yield refuses
    unregister_rule("DivBackward0", 1)


@frees_graphs
def test_a_rule_that_changes_its_mind_is_an_error(moody_rule: list[bool]) -> None:
    model, x = Divided(), torch.randn(4, 200, dtype=torch.float64)
    for _ in range(3):
        backward(model(x), model, "mean", memory="low")
    moody_rule.append(True)
    with pytest.raises(GraphError, match=r"refuses it now.*`retain_graph=True`"):
        backward(model(x), model, "mean", memory="low")
    backward(model(x), model, "mean", memory="low", retain_graph=True)


@pytest.mark.parametrize("memory", ["fast", "low"])
def test_options_may_change_between_steps(memory: str) -> None:
    bias, weight, x = torch.randn(3).double(), torch.randn(20, 3).double(), torch.randn(5, 20)
    leaves = [bias.requires_grad_(), weight.requires_grad_()]
    for alpha, beta in [(1, 1), (1, 1), (1, 1), (2.5, 1), (1, 0.3), (0.5, 2), (1, 1)]:

        def losses(alpha: float = alpha, beta: float = beta) -> Tensor:
            return torch.addmm(bias, x.double(), weight, alpha=alpha, beta=beta).exp().sum(dim=1)

        bias.grad = weight.grad = None
        backward(losses(), leaves, "mean", memory=memory)
        expected = torch.autograd.grad(losses().mean(), leaves)
        torch.testing.assert_close([leaf.grad for leaf in leaves], list(expected))


@frees_graphs
def test_gradients_of_a_freed_graph_can_be_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = _pieces._CPU._replace(captured=0)  # nothing is small: cotangents go to hooks
    monkeypatch.setattr(_pieces, "_CPU", nothing)
    model, x = nn.Linear(4, 3), torch.randn(5, 4)
    named, weights = list(model.named_parameters()), torch.ones(5)
    for _ in range(3):
        tape = Tape(Objectives.of(model(x).square().sum(dim=1)), named, retain_graph=False)
        first = tape.gradients(weights)
    expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    assert_close(first, list(expected))
    with pytest.raises(GraphError, match=r"asked for once.*`retain_graph=True`"):
        tape.gradients(weights)

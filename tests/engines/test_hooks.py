"""Hooks between the losses and the parameters: honoured, or noticed whenever they appear."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lightning_jd import backward
from lightning_jd.engines.tape.plan._cache import forget

Hook = Callable[[Tensor], Tensor | None]


class Hooked(nn.Module):
    """Hooks on a transposed weight and on an activation, from some step on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 5).double(), nn.Linear(5, 2).double()
        self.on_weight: Hook | None = None
        self.on_activation: Hook | None = None

    def forward(self, x: Tensor) -> Tensor:
        weight = self.first.weight.t()
        if self.on_weight is not None:
            weight.register_hook(self.on_weight)
        h = torch.tanh(x @ weight + self.first.bias)
        if self.on_activation is not None:
            h.register_hook(self.on_activation)
        return self.second(h).square().sum(dim=1)


X = torch.randn(6, 4, dtype=torch.float64)


@pytest.fixture(autouse=True)
def nothing_is_certified_yet() -> None:
    forget()


def rows(model: Hooked) -> Tensor:
    losses = model(X)
    found = []
    for loss in losses:
        gradients = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        found.append(torch.cat([g.flatten() for g in gradients]))
    return torch.stack(found)


def check(model: Hooked) -> None:
    """One step of UPGrad against rows by ordinary autograd."""
    model.zero_grad()
    report = backward(model(X), model, "upgrad")
    J = rows(model)
    torch.testing.assert_close(report.gramian, J @ J.T)
    found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert report.weights is not None
    torch.testing.assert_close(found, report.weights @ J)


@pytest.mark.parametrize(
    "hook",
    [lambda g: -g, lambda g: 2 * g, lambda g: torch.zeros_like(g)],
    ids=["turned", "scaled", "dropped"],
)
def test_a_hook_on_a_transposed_weight_is_noticed_when_it_appears(hook: Hook) -> None:
    model = Hooked()
    for _ in range(3):
        check(model)
    model.on_weight = hook
    with pytest.warns(RuntimeWarning, match=r"mismatch for 'first.weight' \("):
        check(model)
    check(model)  # and it is remembered
    model.on_weight = None
    check(model)


def test_a_hook_that_mixes_instances_is_noticed_when_it_appears() -> None:
    model = Hooked()
    for _ in range(3):
        check(model)
    model.on_activation = lambda g: g.mean(dim=0, keepdim=True).expand_as(g)
    with pytest.warns(RuntimeWarning, match="mismatch for 'first"):
        check(model)
    check(model)


def test_a_hook_that_scales_an_activation_is_honoured_in_one_pass() -> None:
    model = Hooked()
    check(model)
    model.on_activation = lambda g: 3 * g
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(model)
    model.zero_grad()
    paths = backward(model(X), model, "mean").paths
    assert all(path.startswith("rule") for path in paths.values())


def test_hooks_on_activations_see_the_gradient_of_the_sum_once_per_step() -> None:
    model = Hooked()
    seen: list[Tensor] = []
    model.on_activation = seen.append
    for _ in range(4):  # the first steps are certified, by more passes
        backward(model(X), model, "upgrad")
    assert len(seen) == 4
    (expected,) = _activation_gradients(model)
    for gradient in seen:
        torch.testing.assert_close(gradient, expected)


def test_full_backward_hooks_run_once_per_step() -> None:
    model = Hooked()
    seen: list[Tensor] = []
    model.second.register_full_backward_hook(lambda module, below, above: seen.append(above[0]))
    for _ in range(4):
        backward(model(X), model, "upgrad")
    assert len(seen) == 4


def test_tables_of_hooks_are_left_as_they_were() -> None:
    model = Hooked()
    h = torch.tanh(model.first(X))
    h.register_hook(lambda gradient: None)
    before = dict(h._backward_hooks or {})
    backward(model.second(h).square().sum(dim=1), model, "mean", retain_graph=True)
    assert dict(h._backward_hooks or {}) == before


def test_tables_of_others_are_not_touched_meanwhile() -> None:
    model = Hooked()
    forget()
    tasks: dict[int, object] = {}  # of a progress bar, say, by numbers that hooks have too
    seen: list[object] = []
    model.on_activation = lambda gradient: seen.extend(tasks.values())
    for _ in range(2):
        tasks[RemovableHandle.next_id] = ["a task"]
        backward(model(X), model, "mean")
    assert len(seen) >= 2
    assert all(task == ["a task"] for task in seen)


def _activation_gradients(model: Hooked) -> list[Tensor]:
    seen: list[Tensor] = []
    model.on_activation = seen.append
    model(X).sum().backward()
    return seen

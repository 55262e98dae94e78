"""Hooks between the losses and the parameters are honoured, from whichever step on they come."""

import warnings
from collections.abc import Callable
from threading import Thread
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from lightning_jd import backward, gramian
from lightning_jd.aggregators import Constant
from lightning_jd.engines import Objectives, holds_hooks
from lightning_jd.engines.tape._compare import certificate_vector
from lightning_jd.engines.tape.plan import memory
from lightning_jd.errors import GraphError
from tests.helpers.rows import flat_gradient, rows_by_autograd

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
    memory.forget()


def check(model: Hooked) -> None:
    """One step of UPGrad against rows by ordinary autograd."""
    model.zero_grad()
    report = backward(model(X), model, "upgrad")
    J = rows_by_autograd(model(X), model)
    torch.testing.assert_close(report.gramian, J @ J.T)
    assert report.weights is not None
    torch.testing.assert_close(flat_gradient(model), report.weights @ J)


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


@pytest.mark.filterwarnings("ignore:The Gramian must agree:RuntimeWarning")
def test_a_hook_that_mixes_instances_counts_for_every_parameter_below() -> None:
    """In half precision, its effect on some parameter may pass for rounding."""
    for seed in range(12):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
        with torch.autocast("cpu", torch.bfloat16):
            h = model[1](model[0](torch.randn(5, 2, 3)))
            h.register_hook(lambda g: g + 0.2 * g.roll(1, 0))
            losses = (model[2](h) - 0.3).square().flatten(1).mean(dim=1)
        paths = backward(losses, model, "mean").paths
        assert set(paths.values()) == {"rows"}


@pytest.mark.filterwarnings("ignore:The Gramian must agree:RuntimeWarning")
@pytest.mark.parametrize("kind", ["tensor", "prehook", "posthook"])
def test_a_clip_on_a_transposed_weight_is_noticed_though_rows_cancel(kind: str) -> None:
    """Gradients of two similar examples cancel in a half of all random combinations."""

    def clip(gradient: Tensor) -> Tensor:
        return gradient.clamp(-0.5, 0.5)

    for seed in range(12):
        torch.manual_seed(seed)
        weight, x = nn.Parameter(torch.randn(3, 4).double()), torch.randn(1, 4).double()
        transposed = weight.t()
        if kind == "tensor":
            transposed.register_hook(clip)
        elif kind == "prehook":
            transposed.grad_fn.register_prehook(lambda above: tuple(map(clip, above)))
        else:
            transposed.grad_fn.register_hook(lambda below, _: tuple(map(clip, below)))
        losses = (torch.cat([x, x + 1e-3]) @ transposed).sum(dim=1)
        J = rows_by_autograd(losses, [weight])
        torch.testing.assert_close(gramian(losses, [weight]), J @ J.T)


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


def clip(gradient: Tensor) -> Tensor:
    """As people clip inside of a network: by the norm of all that comes along."""
    return gradient * (0.5 / gradient.norm()).clamp(max=1)


def turned(gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple([-2 * g for g in gradients])


def on_tensor(hook: Callable[[Tensor], Tensor | None]) -> Callable[[Tensor], object]:
    return lambda h: h.register_hook(hook)


HOOKS: dict[str, Callable[[Tensor], object]] = {
    "scaling": on_tensor(lambda g: 3 * g),
    "clipping by value": on_tensor(lambda g: g.clamp(-0.01, 0.01)),
    "clipping by norm": on_tensor(clip),
    "rectifying": on_tensor(lambda g: g.relu()),
    "shifting": on_tensor(lambda g: g + 0.01),
    "mixing": on_tensor(lambda g: g.mean(dim=0, keepdim=True).expand_as(g)),
    "prehook": lambda h: h.grad_fn.register_prehook(turned),
    "posthook": lambda h: h.grad_fn.register_hook(
        lambda below, above: tuple([None if g is None else 2 * g for g in below])
    ),
    "clipping prehook": lambda h: h.grad_fn.register_prehook(
        lambda above: tuple([g.clamp(-0.3, 0.3) for g in above])
    ),
    "clipping posthook": lambda h: h.grad_fn.register_hook(
        lambda below, above: tuple([None if g is None else g.clamp(-0.3, 0.3) for g in below])
    ),
}


class Wide(nn.Module):
    """A hook where gradients arrive at the output of a layer."""

    def __init__(self, width: int, *, batch_norm: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, width).double(), nn.Linear(width, 3).double()
        self.norm = nn.BatchNorm1d(width).double() if batch_norm else nn.Identity()
        self.hook: Callable[[Tensor], object] | None = None
        self.full: Callable[..., object] | None = None

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.hook is not None:
            self.hook(h)
        return self.second(torch.tanh(self.norm(h))).square()


def losses_of(form: str, outputs: Tensor) -> Tensor | list[Tensor]:
    if form == "instances":
        return outputs.sum(dim=1)
    return outputs if form == "matrix" else list(outputs.mean(dim=0))


@pytest.mark.filterwarnings("ignore:The Gramian must agree:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:One backward pass per instance:RuntimeWarning")
@pytest.mark.parametrize("memory", ["fast", "low"])
@pytest.mark.parametrize(
    ("form", "width", "batch_norm"),
    [
        ("instances", 5, False),
        ("instances", 5, True),
        ("matrix", 5, False),
        ("tasks", 5, False),
        ("tasks", 40_000, False),
    ],
)
@pytest.mark.parametrize("kind", list(HOOKS))
def test_hooks_that_change_gradients_are_honoured_from_the_step_on_in_which_they_come(
    kind: str, form: str, width: int, batch_norm: bool, memory: Literal["fast", "low"]
) -> None:
    torch.manual_seed(0)
    model = Wide(width, batch_norm=batch_norm)
    for step in range(7):
        model.hook = HOOKS[kind] if step >= 4 else None
        losses = losses_of(form, model(X))
        J = rows_by_autograd(losses, model)
        weights = torch.linspace(1, 2, len(J), dtype=torch.float64)
        model.zero_grad()
        report = backward(losses, model, Constant(weights.tolist()), memory=memory)
        scale = J.norm() ** 2
        assert (report.gramian - J @ J.T).norm() <= 1e-10 * scale, step
        assert (flat_gradient(model) - weights @ J).norm() <= 1e-10 * J.norm(), step


@pytest.mark.filterwarnings("ignore:The Gramian must agree:RuntimeWarning")
@pytest.mark.parametrize("form", ["instances", "tasks"])
@pytest.mark.parametrize("kind", list(HOOKS))
def test_the_mean_is_plain_training_whatever_hooks_do(kind: str, form: str) -> None:
    torch.manual_seed(0)
    model = Wide(5)
    model.hook = HOOKS[kind]
    for _ in range(3):
        model.zero_grad()
        losses = losses_of(form, model(X))
        vector = losses if isinstance(losses, Tensor) else torch.stack(losses)
        vector.mean().backward(retain_graph=True)
        expected = flat_gradient(model)
        model.zero_grad()
        backward(losses, model, "mean")
        torch.testing.assert_close(flat_gradient(model), expected)


def test_a_hook_is_known_at_its_own_graph() -> None:
    """Two graphs are built before one is differentiated, as for the two networks of a GAN."""
    first, second = Wide(5), Wide(5)
    for step in range(6):
        if step == 4:
            second.hook = HOOKS["scaling"]
        both = first(X).sum(dim=1), second(X).sum(dim=1)
        for model, losses in zip((first, second), both, strict=True):
            model.zero_grad()
            losses.mean().backward(retain_graph=True)
            expected = flat_gradient(model)
            model.zero_grad()
            backward(losses, model, Constant([1 / len(X)] * len(X)))
            torch.testing.assert_close(flat_gradient(model), expected)


@pytest.mark.filterwarnings("ignore:The Gramian must agree:RuntimeWarning")
@pytest.mark.parametrize("where", ["here", "there"])
def test_a_hook_is_known_if_another_thread_takes_steps(where: str) -> None:
    """Threads number their nodes each from zero."""
    model, other = Wide(5), Wide(5)
    for _ in range(4):
        gramian(model(X).sum(dim=1), model)
    h = model.first(X)
    h.register_hook(lambda g: g + 0.5 * g.roll(1, 0))
    losses = model.second(torch.tanh(h)).square().sum(dim=1)
    found = []

    def work() -> None:
        gramian(other(X).sum(dim=1), other)
        if where == "there":
            found.append(gramian(losses, model))

    thread = Thread(target=work)
    thread.start()
    thread.join()
    J = rows_by_autograd(losses, model)
    torch.testing.assert_close(found[0] if found else gramian(losses, model), J @ J.T)


def test_a_hook_is_known_if_it_comes_after_a_first_look() -> None:
    model = Wide(5)
    for _ in range(4):
        backward(model(X).sum(dim=1), model, "upgrad")
    h = model.first(X)
    losses = model.second(torch.tanh(h)).square().sum(dim=1)
    before = gramian(losses, model)
    h.register_hook(lambda g: 3 * g)
    J = rows_by_autograd(losses, model.first)
    after = gramian(losses, model)
    torch.testing.assert_close(after - before, (1 - 1 / 9) * J @ J.T)


def test_full_backward_hooks_that_change_gradients_are_honoured() -> None:
    model = Wide(5)
    model.second.register_full_backward_hook(lambda module, below, above: (2 * below[0],))
    for _ in range(4):
        model.zero_grad()
        losses = model(X).sum(dim=1)
        losses.mean().backward(retain_graph=True)
        expected = flat_gradient(model)
        model.zero_grad()
        backward(losses, model, Constant([1 / len(X)] * len(X)))
        torch.testing.assert_close(flat_gradient(model), expected)


@pytest.mark.parametrize("kind", ["scaling", "prehook", "posthook"])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("split", ["terms", "instances"])
def test_a_hook_above_the_parts_of_a_loss_is_honoured_or_refused(
    split: Literal["terms", "instances"], place: int, kind: str
) -> None:
    """A split goes past the operations between the loss and its parts."""
    model = Wide(5)
    for hooked in (False, False, True):
        squares = model(X)
        if split == "terms":
            part = squares[:, 1].amax()
            whole = squares[:, 0].mean() + part
        else:
            part = squares.sum(dim=1)
            whole = part.mean()
        steps = [part, whole, whole / 2]
        if hooked:
            HOOKS[kind](steps[place])
        steps[-1].backward(retain_graph=True)
        expected = [p.grad for p in model.parameters()]
        model.zero_grad()
        aggregator = "sum" if split == "terms" else "mean"
        if hooked and not (split == "terms" and place == 0):
            with pytest.raises(GraphError, match="must have no hook that changes gradients"):
                backward(steps[-1], model, aggregator, split=split)
            return
        backward(steps[-1], model, aggregator, split=split)
        torch.testing.assert_close([p.grad for p in model.parameters()], expected)
        model.zero_grad()


def test_hooks_above_the_parts_of_a_loss_may_look() -> None:
    model, seen = Wide(5), list[float]()
    loss = model(X).sum(dim=1).mean()
    loss.register_hook(lambda g: seen.append(float(g)))
    assert len(backward(loss, model, "upgrad", split="instances").names) == len(X)
    assert seen


@pytest.mark.parametrize("register", ["register_hook", "register_prehook"])
def test_hooks_of_accumulation_nodes_run_as_with_backward(register: str) -> None:
    model = nn.Linear(4, 3).double()
    node = torch.autograd.graph.get_gradient_edge(model.weight).node
    seen: list[object] = []
    for _ in range(3):
        backward(model(X).square().sum(dim=1), model, "upgrad")
    getattr(node, register)(lambda *gradients: seen.append(gradients))
    for step in range(1, 4):
        model.zero_grad()
        backward(model(X).square().sum(dim=1), model, "upgrad")
        assert len(seen) == step


def test_a_model_without_hooks_is_not_taken_for_one_with_hooks() -> None:
    """Else every step would be certified."""
    model, other = Wide(5), Wide(5)
    other.hook = HOOKS["scaling"]
    for _ in range(3):
        backward(other(X).sum(dim=1), other, "upgrad")
        backward(model(X).sum(dim=1), model, "upgrad")
    losses = model(X).sum(dim=1)
    assert not holds_hooks(Objectives.of(losses))
    assert holds_hooks(Objectives.of(other(X).sum(dim=1)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_certificate_weighs_less_than_the_losses_where_something_may_clip(
    dtype: torch.dtype,
) -> None:
    """What clips by the norm shows in another norm only."""
    for m in (1, 2, 5):
        norms = torch.logspace(0, -8, m).double()
        for _ in range(20):
            v = certificate_vector(norms.square().diag(), dtype, is_linear=False)
            assert 0 < v.abs().min() <= v.abs().max() <= 0.5
            assert (v.frexp().mantissa * 8 % 1 == 0).all()  # exact in every type


@pytest.mark.parametrize("columns", [1, 2])
def test_weights_of_a_certificate_differ_between_instances(columns: int) -> None:
    """A hook that mixes two instances does not show where they weigh the same."""
    for _ in range(50):
        G = torch.eye(8 * columns).double()
        v = certificate_vector(G, torch.float64, is_linear=False, columns=columns)
        for task in v.view(-1, columns).unbind(1):
            assert len(set(task.tolist())) == 8
            assert (task[::2] * task[1::2] < 0).all()


@pytest.mark.filterwarnings("ignore:The Gramian must agree:RuntimeWarning")
def test_a_hook_that_leaves_nothing_of_the_sum_of_all_losses_is_noticed() -> None:
    model = Wide(5)
    for _ in range(3):
        squares = model(X)
        squares.register_hook(lambda g: g - g.mean())
        losses = squares.sum(dim=1)
        J = rows_by_autograd(losses, model)
        assert J.any()
        torch.testing.assert_close(gramian(losses, model), J @ J.T)

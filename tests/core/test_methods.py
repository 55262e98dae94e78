"""What a step tells a method, and what it does with its answer, on one process."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import lightning_jd
from lightning_jd.aggregators import (
    Aggregator,
    GradVac,
    GramianAggregator,
    Method,
    MoDo,
    Step,
    available,
    register,
    resolve,
)
from lightning_jd.aggregators._memory import Stateful
from lightning_jd.core import collect, compute_update
from lightning_jd.engines import Objectives, jacobian, named_parameters_of
from lightning_jd.engines._objectives import Term
from lightning_jd.errors import ArgumentError, NonFiniteError
from tests.helpers.rows import flat_gradient

STATEFUL = {name: cls for name, cls in available().items() if issubclass(cls, Stateful)}


def network() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def data(t: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(t)
    return torch.randn(8, 4, generator=generator).double(), torch.randn(8, 3, generator=generator)


def losses(model: nn.Module, t: int = 0) -> dict[str, Tensor]:
    x, y = data(t)
    return dict(zip("abc", (model(x) - y).square().mean(dim=0).unbind(), strict=True))


class Listening(GramianAggregator):
    """Notes what it is told."""

    uses_values = True

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Step] = []

    def weights(self, gramian: Tensor) -> Tensor:
        raise AssertionError("a step must tell more")

    def weigh(self, gramian: Tensor, step: Step) -> Tensor:
        self.told.append(step)
        return gramian.new_ones(len(gramian))


def test_a_step_tells_names_losses_kind_and_group() -> None:
    model, method = network(), Listening()
    values = losses(model)
    lightning_jd.backward(values, model, method, groups="layer")
    assert [step.group for step in method.told] == ["0", "2"]
    for step in method.told:
        assert (step.names, step.kind) == (("a", "b", "c"), "tasks")
        assert step.values is not None
        assert_close(step.values, torch.stack(list(values.values())).detach())


def test_a_method_that_needs_rows_is_told_the_same() -> None:
    told: list[Step] = []

    class Rows(Aggregator):
        def aggregate(self, jacobian: Tensor) -> Tensor:
            raise AssertionError("a step must tell more")

        def combine(self, jacobian: Tensor, step: Step) -> Tensor:
            told.append(step)
            return jacobian.sum(dim=0)

    model = network()
    lightning_jd.backward(losses(model), model, Rows())
    assert told[0].names == ("a", "b", "c")


@pytest.mark.parametrize("name", available("balancers"))
def test_a_balancer_gives_the_gradient_of_the_weighted_losses(name: str) -> None:
    model, expected = network(), network()
    report = lightning_jd.backward(losses(model), model, resolve(name))
    weights = resolve(name).weigh(  # type: ignore[attr-defined]
        Step(tuple("abc"), torch.stack(list(losses(expected).values())).detach())
    )
    sum(w * loss for w, loss in zip(weights, losses(expected).values(), strict=True)).backward()
    assert_close(flat_gradient(model), flat_gradient(expected), rtol=1e-12, atol=1e-14)
    assert report.weights is not None
    assert_close(report.weights, weights, rtol=1e-12, atol=0)
    assert report.known_gramian is None
    assert set(report.paths.values()) == {"balanced"}
    assert "weight" in str(report)


def test_a_balancer_is_one_ordinary_backward_pass() -> None:
    class Counting(torch.autograd.Function):
        passes = 0

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            Counting.passes += 1
            return gradient

    model, (x, y) = network(), data()
    hidden = Counting.apply(model[1](model[0](x)))
    tasks = (model[2](hidden) - y).square().mean(dim=0)
    lightning_jd.backward(list(tasks), model, resolve("uw"))
    assert Counting.passes == 1


def test_with_a_balancer_heads_may_keep_their_own_gradient() -> None:
    trunk, heads = nn.Linear(4, 5).double(), nn.ModuleList([nn.Linear(5, 1).double()] * 1)
    heads.append(nn.Linear(5, 1).double())
    model = nn.ModuleDict({"trunk": trunk, "heads": heads})
    x, _ = data()

    def both() -> dict[str, Tensor]:
        features = torch.tanh(trunk(x))
        return {str(k): head(features).square().mean() for k, head in enumerate(heads)}

    lightning_jd.backward(both(), model, "loglosses", params="shared")
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    sum(both().values()).backward()  # type: ignore[union-attr]
    for name, p in model.named_parameters():
        assert p.grad is not None
        if name.startswith("heads"):
            assert_close(found[name], p.grad)
        else:
            assert not torch.allclose(found[name], p.grad)


def test_a_balancer_names_a_loss_that_is_not_finite() -> None:
    model = network()
    values = losses(model)
    values["b"] = values["b"] * torch.inf
    with pytest.raises(NonFiniteError, match="got NaN or infinity in 1 of 3: 'b'"):
        lightning_jd.backward(values, model, "equal")


def accumulated(method: Method, model: nn.Module, ts: list[int]) -> Tensor:
    named = named_parameters_of(model)
    rows = collect(named)
    for t in ts:
        rows.add(Objectives.of(losses(model, t)))
    update = compute_update(rows, method)
    return torch.cat([g.flatten() for g in update.gradients])


@pytest.mark.parametrize("name", sorted(STATEFUL))
def test_pieces_of_a_step_are_one_step(name: str) -> None:
    # The mean over two pieces of the same data is that data: losses and gradients alike.
    pieces, whole = STATEFUL[name](), STATEFUL[name]()
    model = network()
    for t in range(3):
        found = accumulated(pieces, model, [t, t])
        model.zero_grad()
        if whole.halves:
            expected = accumulated(whole, model, [t])
        else:
            lightning_jd.backward(losses(model, t), model, whole)
            expected = flat_gradient(model)
        assert_close(found, expected, rtol=1e-8, atol=1e-10)


def test_instances_have_no_name_to_keep_a_state_by() -> None:
    model = network()
    vector = torch.stack(list(losses(model).values()))
    with pytest.raises(ArgumentError, match=r"GradVac stores its state .* got 3 instances"):
        lightning_jd.backward(vector, model, GradVac())


# --- two samples


def test_the_halves_of_a_matrix_are_two_samples() -> None:
    model, method = network(), MoDo(gamma=0.3, rho=0.1)
    x, y = data()
    lightning_jd.backward((model(x) - y).square(), model, method)
    matrix = (model(x) - y).square()
    named = named_parameters_of(model)
    A, B = (
        jacobian(Objectives.of(list(matrix[start::2].mean(dim=0))), named) for start in range(2)
    )
    G = torch.block_diag(A @ A.T, B @ B.T)
    G[:3, 3:], G[3:, :3] = A @ B.T, B @ A.T
    fresh = MoDo(gamma=0.3, rho=0.1)
    names = [f"{k} ({half} half)" for half in ("first", "second") for k in range(3)]
    w = fresh.weigh(G, Step(tuple(names)))
    assert_close(flat_gradient(model), w @ torch.cat([A, B]), rtol=1e-10, atol=1e-12)


def test_one_sample_is_refused() -> None:
    model = network()
    for given in (losses(model), torch.stack(list(losses(model).values()))):
        with pytest.raises(ArgumentError, match=r"MoDo must have two independent samples .*'step'"):
            lightning_jd.backward(given, model, MoDo())


def test_terms_of_a_sum_have_no_values_to_balance() -> None:
    model = network()
    parts = losses(model)
    total = parts["a"] + parts["b"]
    edge = torch.autograd.graph.get_gradient_edge(parts["a"])
    one = torch.ones((), dtype=torch.float64)
    objectives = Objectives(("a", "b"), "tasks", (Term(edge, one), Term(edge, one)), total=total)
    for name in ("uw", "gradnorm", "dbmtl"):
        with pytest.raises(ArgumentError, match=rf"{name} must know the value of each loss"):
            lightning_jd.backward(objectives, model, resolve(name))


@pytest.mark.parametrize("name", sorted(STATEFUL))
def test_a_name_would_begin_anew_in_every_call(name: str) -> None:
    model = network()
    for spec in (name, {"name": name}, STATEFUL[name]):
        with pytest.raises(ArgumentError, match=rf"{name} keeps a state between steps, .* once"):
            lightning_jd.backward(losses(model), model, spec)


def test_a_name_means_the_class_that_was_registered_last() -> None:
    def largest(factor: float) -> None:
        @register
        class ForThisTest(GramianAggregator):
            def weights(self, gramian: Tensor) -> Tensor:
                return gramian.new_full((len(gramian),), factor)

    model = network()
    for factor in (1.0, 2.0):
        largest(factor)
        for _ in range(2):
            report = lightning_jd.backward(losses(model), model, "forthistest")
            assert report.weights is not None
            assert report.weights.tolist() == [factor] * 3

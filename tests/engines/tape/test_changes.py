"""Changes between steps under one structure of the graph count in the step in which they come."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_jd import backward, gramian
from lightning_jd.aggregators import Constant
from lightning_jd.engines.tape import _step
from lightning_jd.errors import GraphError
from tests.helpers.rows import flat_gradient, rows_by_autograd

#: The step from which on something is different: there has been a certificate, and a program.
CHANGE = 4
STEPS = 6


def check(losses: Tensor, parameters: Sequence[Tensor], tolerance: float, **options: Any) -> None:
    """The Gramian, and the gradient for fixed weights, against rows by autograd on this graph."""
    J = rows_by_autograd(losses, parameters).double()
    weights = torch.linspace(1, 2, len(J), dtype=torch.float64)
    for parameter in parameters:
        parameter.grad = None
    report = backward(losses, list(parameters), Constant(weights.tolist()), **options)
    assert report.gramian is not None
    assert (report.gramian - J @ J.T).norm() <= tolerance * J.norm() ** 2
    assert (flat_gradient(parameters) - weights @ J).norm() <= tolerance * J.norm()


def pair(*sizes: int, dtype: torch.dtype = torch.float64) -> tuple[nn.Linear, nn.Linear]:
    torch.manual_seed(0)
    return nn.Linear(*sizes[:2]).to(dtype), nn.Linear(*sizes[-2:]).to(dtype)


def cumulated(h: Tensor, changed: bool) -> Tensor:
    h = h.clone()
    h[:, :3].cumsum_(0 if changed else 1)
    return h


def multiplied(h: Tensor, changed: bool) -> Tensor:
    h = h.clone()
    h[:, :3].mul_(2) if changed else h[:, :3].tanh_()
    return h


def strided(h: Tensor, changed: bool) -> Tensor:
    mask = torch.rand(6, 4, dtype=h.dtype)
    mask = mask.t().contiguous().t() if changed else mask  # the same in another memory order
    return (mask * h).as_strided((6, 4), (4, 1))


@pytest.mark.parametrize("change", [cumulated, multiplied, strided])
def test_operations_in_place_of_views_and_memory_orders(
    change: Callable[[Tensor, bool], Tensor],
) -> None:
    first, second = pair(4, 4)
    parameters = [*first.parameters(), *second.parameters()]
    for step in range(STEPS):
        h = change(first(torch.randn(6, 4, dtype=torch.float64)), step >= CHANGE)
        check(second(h).square().sum(dim=1), parameters, 1e-12)


def test_two_recurrent_layers_that_get_the_same_cotangent() -> None:
    torch.manual_seed(0)
    layers = nn.LSTM(4, 5), nn.LSTM(4, 5)
    parameters = [p for layer in layers for p in layer.parameters()]
    for step in range(STEPS):
        x = torch.randn(3, 6, 4)
        first, second = (layer(x)[0] for layer in layers)
        total = torch.add(first, second, alpha=1 if step >= CHANGE else 2)
        check(total.square().sum(dim=(0, 2)), parameters, 1e-5)


def test_a_recurrent_layer_whose_steps_are_the_objectives() -> None:
    torch.manual_seed(0)
    layer = nn.LSTM(4, 5)
    check(layer(torch.randn(6, 4))[0].square().sum(dim=1), list(layer.parameters()), 1e-5)


def test_a_cotangent_that_was_expanded_becomes_dense() -> None:
    first, second = pair(4, 4)
    parameters = [*first.parameters(), *second.parameters()]
    for step in range(STEPS):
        x = torch.randn(6, 4, dtype=torch.float64)
        total = torch.add(first(x), second(x), alpha=0.5 if step >= CHANGE else 1)
        check(total.sum(dim=1), parameters, 1e-12)


def test_a_bias_of_one_entry() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(6, 4).double(), nn.Parameter(torch.randn(3, 4).double())
    bias, last = nn.Parameter(torch.randn(1).double()), nn.Linear(3, 2).double()
    parameters = [weight, bias, *last.parameters()]
    h = F.linear(x, weight, bias)
    check(last(h.tanh()).square().sum(dim=1), parameters, 1e-12)
    mixed = F.linear(x, weight, bias)
    check(last((mixed - mixed.mean(dim=0)).tanh()).square().sum(dim=1), parameters, 1e-12)


def test_a_real_parameter_that_is_cast_to_complex() -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(4, 4, dtype=torch.float64))
    for step in range(STEPS):
        dtype = torch.complex128 if step >= CHANGE else torch.float64
        losses = (torch.randn(6, 4, dtype=dtype) @ weight.to(dtype)).abs().square().sum(dim=1)
        check(losses, [weight], 1e-12)


class Clip(torch.autograd.Function):
    """Its gradient is not linear in that of its output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.clamp(-0.1, 0.1)


@pytest.mark.filterwarnings("ignore:The Gramian must agree:RuntimeWarning")
@pytest.mark.parametrize("memory", ["fast", "low"])
def test_gradients_that_are_not_linear_in_the_losses(memory: Literal["fast", "low"]) -> None:
    first, second = pair(4, 4)
    parameters = [*first.parameters(), *second.parameters()]
    for _ in range(3):
        h = Clip.apply(first(torch.randn(6, 4, dtype=torch.float64)).tanh())
        check(10 * second(h).square().sum(dim=1), parameters, 1e-12, memory=memory)


@pytest.mark.parametrize("kind", ["float16", "autocast", "bfloat16", "float32"])
def test_an_index_with_repetitions_mixes_instances_in_every_precision(kind: str) -> None:
    types = {"float16": torch.float16, "bfloat16": torch.bfloat16}
    dtype = types.get(kind, torch.float32)
    first, second = pair(4, 4, dtype=dtype)
    parameters = [*first.parameters(), *second.parameters()]
    for step in range(40):
        index = torch.arange(4)
        index[step % 4] = (step + 1) % 4
        with torch.autocast("cpu", dtype=torch.float16, enabled=kind == "autocast"):
            h = first(torch.randn(4, 4).to(dtype)).tanh()[index]
            losses = second(h).square().sum(dim=1).to(dtype)
        check(losses, parameters, 1e-5 if kind == "float32" else 2e-2)


class Scale(torch.autograd.Function):
    """An operation that nobody knows, with a derivative that may be tiny."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * ctx.factor, None


def test_slices_with_a_small_local_derivative_keep_their_owner() -> None:
    first, second = pair(4, 4, dtype=torch.float32)
    parameters = [*first.parameters(), second.weight]
    for step in range(STEPS):
        factor = 1e-7 if step >= CHANGE else 1.0
        with torch.autocast("cpu", dtype=torch.float16):
            h = first(torch.randn(6, 4)).float().tanh()
        h = Scale.apply(h, factor) / factor
        check(F.linear(h, second.weight).square().sum(dim=1), parameters, 2e-3)


def test_losses_that_are_a_parameter() -> None:
    losses = nn.Parameter(torch.randn(5))
    check(losses, [losses], 0.0)
    torch.testing.assert_close(gramian(losses, [losses]), torch.eye(5))


@pytest.mark.parametrize("tasks", [False, True])
def test_a_graph_is_freed_or_kept_alike_in_every_step(tasks: bool) -> None:
    model = nn.Linear(4, 3)
    for _ in range(5):
        outputs = model(torch.randn(6, 4)).square()
        losses = list(outputs.mean(dim=0)) if tasks else outputs.sum(dim=1)
        backward(losses, model, "upgrad", retain_graph=True)
        backward(losses, model, "upgrad")
        with pytest.raises(GraphError, match="Pass `retain_graph=True` the first time"):
            backward(losses, model, "upgrad")


def test_a_certificate_belongs_to_one_model_and_its_types() -> None:
    """Two models of one structure, and one that changes its type: each is certified."""
    count = []

    def first_paths(dtype: torch.dtype, model: nn.Module) -> None:
        x = torch.randn(6, 4, dtype=dtype)
        with pytest.MonkeyPatch.context() as patch:
            certified = _step.Step.certified

            def counted(self: Any, *args: Any) -> Any:
                count.append(dtype)
                return certified(self, *args)

            patch.setattr(_step.Step, "certified", counted)
            backward(model(x).square().sum(dim=1), model, "mean")

    one, two = nn.Linear(4, 3), nn.Linear(4, 3)
    for model in (one, one, two, two):
        first_paths(torch.float32, model)
    assert len(count) == 2
    first_paths(torch.float64, one.double())
    assert count[2:] == [torch.float64]

"""Clip in a step: the norms of the rows, and nothing else of the Gramian."""

from typing import Literal

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_jd import Accumulator, backward, gradient_norms, jacobian
from lightning_jd.aggregators import Clip
from lightning_jd.core.rows._accumulated import AccumulatedRows
from lightning_jd.engines.tape import OuterProduct
from lightning_jd.errors import ArgumentError, NonFiniteError, NotComputedError
from tests.helpers.rows import flat_gradient


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 30)).double()


def losses_of(net: nn.Module, x: Tensor) -> Tensor:
    return net(x).square().sum(dim=1)


def clipped(net: nn.Module, x: Tensor, norm: float) -> Tensor:
    """Row by row, from the definition; the mean."""
    J = jacobian(losses_of(net, x), net, chunk=1)
    return (J * (norm / J.norm(dim=1, keepdim=True)).clamp(max=1)).mean(dim=0)


@pytest.mark.parametrize("memory", ["fast", "low"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_rows_are_clipped_and_no_product_of_rows_is_computed(
    memory: str, reduction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def products(*_: object) -> None:
        raise AssertionError("products of rows were computed")

    net, x = model(), torch.randn(8, 6).double()
    norm = float(gradient_norms(losses_of(net, x), net).median())
    expected = clipped(net, x, norm) * (8 if reduction == "sum" else 1)
    for is_certified in (True, False):
        if not is_certified:
            monkeypatch.setattr(OuterProduct, "gramian", products)
            monkeypatch.setattr(OuterProduct, "settle", products)
        net.zero_grad()
        report = backward(losses_of(net, x), net, Clip(norm, reduction), memory=memory)
        assert_close(flat_gradient(net), expected)
        assert report.known_gramian is None
        assert_close(report.groups[None].norms, gradient_norms(losses_of(net, x), net))
        with pytest.raises(NotComputedError, match="reads norms only"):
            _ = report.gramian
    assert f"{float(report.groups[None].norms[0]):.4g}" in str(report)


def test_groups_are_clipped_apart() -> None:
    net, x = model(), torch.randn(5, 6).double()
    backward(losses_of(net, x), net, Clip(0.3), groups="layer")
    for layer in (net[0], net[2]):
        J = jacobian(losses_of(net, x), layer, chunk=1)
        expected = (J * (0.3 / J.norm(dim=1, keepdim=True)).clamp(max=1)).mean(dim=0)
        assert_close(flat_gradient(layer), expected)


@pytest.mark.parametrize("is_tasks", [False, True])
def test_micro_batches_are_one_batch(is_tasks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def products(*_: object) -> None:
        raise AssertionError("products of rows were computed")

    monkeypatch.setattr(AccumulatedRows, "gramian", products)
    net, x = model(), torch.randn(8, 6).double()
    accumulator = Accumulator(net, Clip(0.3))
    for part in x.split(4):
        losses = losses_of(net, part)
        accumulator.add({"a": losses[::2].mean(), "b": losses[1::2].mean()} if is_tasks else losses)
    report = accumulator.backward()
    J = jacobian(losses_of(net, x), net, chunk=1)
    J = torch.stack([J[::2].mean(dim=0), J[1::2].mean(dim=0)]) if is_tasks else J
    factors = (0.3 / J.norm(dim=1, keepdim=True)).clamp(max=1)
    assert_close(flat_gradient(net), (J * factors).mean(dim=0))
    assert_close(report.groups[None].norms, J.norm(dim=1))


def test_scaled_losses_are_clipped_by_their_own_norms() -> None:
    net, x = model(), torch.randn(5, 6).double()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    backward(losses_of(net, x), net, Clip(0.3), scaler=scaler)
    assert_close(flat_gradient(net), 1024 * clipped(net, x, 0.3))


def test_a_loss_that_is_not_finite_is_named() -> None:
    net, x = model(), torch.randn(4, 6).double()
    x[2] = torch.nan
    with pytest.raises(NonFiniteError, match="in 1 of 4: '2'"):
        backward(losses_of(net, x), net, Clip(1.0))
    report = backward(losses_of(net, x), net, Clip(1.0), nonfinite="skip")
    assert report.skipped == ("2",)
    assert_close(flat_gradient(net), clipped(net, x[[0, 1, 3]], 1.0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"norm": 0}, "`norm` must be positive and finite, got 0"),
        ({"norm": float("inf")}, "`norm` must be positive and finite, got inf"),
        ({"norm": 1, "reduction": "max"}, "`reduction` must be 'mean' or 'sum', got 'max'"),
    ],
)
def test_wrong_arguments(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Clip(**arguments)


@pytest.mark.parametrize("memory", ["fast", "low"])
@pytest.mark.parametrize("width", [8, 40_000])
def test_shared_parameters_are_clipped_and_heads_are_not(
    width: int, memory: Literal["fast", "low"]
) -> None:
    torch.manual_seed(0)
    trunk, first, second = nn.Linear(6, width), nn.Linear(width, 1), nn.Linear(width, 2)
    net = nn.ModuleList([trunk, first, second]).double()
    features = torch.tanh(trunk(torch.randn(5, 6).double()))
    losses = {"a": first(features).square().mean(), "b": second(features).exp().mean()}
    J = jacobian(losses, trunk, chunk=1)
    factors = (0.1 / J.norm(dim=1, keepdim=True)).clamp(max=1)
    plain = torch.autograd.grad(sum(losses.values()), first.weight, retain_graph=True)  # type: ignore[arg-type]
    backward(losses, net, Clip(0.1), params="shared", memory=memory)
    assert_close(flat_gradient(trunk), (J * factors).mean(dim=0))
    assert_close(first.weight.grad, *plain)

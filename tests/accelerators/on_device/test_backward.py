"""``backward`` on the device: every method and every option gives the gradients of the CPU."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import lightning_jd
from lightning_jd.aggregators import available, resolve
from lightning_jd.errors import NonFiniteError
from tests.helpers.examples import spec
from tests.pretended import DEVICE, host

METHODS = available()
STEPS = 3


class Net(nn.Module):
    """Convolution, norm, a linear layer, and a head for each of four tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 6)
        )
        self.heads = nn.ModuleList(nn.Linear(6, 1) for _ in range(4))

    def forward(self, x: Tensor) -> list[Tensor]:
        features = self.trunk(x).tanh()
        return [head(features).squeeze(1) for head in self.heads]


def instances(outputs: list[Tensor]) -> Tensor:
    return torch.stack(outputs).square().sum(dim=0)


def tasks(outputs: list[Tensor]) -> dict[str, Tensor]:
    return {name: (y - 1).square().mean() for name, y in zip("abcd", outputs, strict=True)}


def matrix(outputs: list[Tensor]) -> Tensor:
    return (torch.stack(outputs, dim=1) - 0.5).square()


FORMS: dict[str, Callable[[list[Tensor]], Any]] = {
    "instances": instances,
    "tasks": tasks,
    "matrix": matrix,
}


def steps(device: Any, form: str, method: Any, **options: Any) -> list[Tensor]:
    """Parameters and weights after a few steps of SGD."""
    torch.manual_seed(0)
    net = Net().double().to(device)
    x = torch.randn(STEPS, 4, 2, 5, 5, dtype=torch.float64).to(device)
    method = copy.deepcopy(method)
    seen: list[Tensor] = []
    for batch in x:
        net.zero_grad()
        report = lightning_jd.backward(FORMS[form](net(batch)), net, method, **options)
        if report.known_weights is not None:
            seen.append(report.weights)
        with torch.no_grad():
            for p in net.parameters():
                p -= 0.05 * p.grad
    found = [*seen, *net.parameters()]
    assert all(tensor.device.type == torch.device(device).type for tensor in found)
    return [host(tensor) for tensor in found]


def assert_same(form: str, method: Any, **options: Any) -> None:
    expected, found = (steps(d, form, method, **options) for d in ("cpu", DEVICE))
    assert_close(found, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_gives_the_steps_of_the_cpu(name: str) -> None:
    method = resolve(spec(name, 4))
    # Two independent samples of every task are needed, which halves of a matrix are.
    assert_same("matrix" if name in ("modo", "sdmgrad") else "tasks", method)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("memory", ["fast", "low"])
@pytest.mark.parametrize("groups", [None, "layer"])
def test_an_option_gives_the_steps_of_the_cpu(form: str, memory: str, groups: str | None) -> None:
    assert_same(form, resolve("upgrad"), memory=memory, groups=groups)


@pytest.mark.parametrize("select", ["trunk.*", "shared"])
def test_a_selection_gives_the_steps_of_the_cpu(select: str) -> None:
    assert_same("tasks", resolve("upgrad"), params=select)


def test_gradients_that_are_not_finite_are_named() -> None:
    weight = nn.Parameter(torch.ones(3, device=DEVICE))
    x = torch.tensor([[1.0, 1, 1], [0, 0, 0]]).to(DEVICE)
    with pytest.raises(NonFiniteError, match="Gradients must be finite"):
        lightning_jd.backward((x * weight).norm(dim=1).sqrt(), [weight], "upgrad")
    with pytest.raises(NonFiniteError, match="Losses must be finite"):
        lightning_jd.backward((x * weight).sum(dim=1).log(), [weight], "upgrad")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_gives_the_gradients_of_the_cpu(dtype: torch.dtype) -> None:
    found = []
    for device in ("cpu", DEVICE.type):
        torch.manual_seed(0)
        net = Net().to(device)
        x = torch.randn(4, 2, 5, 5).to(device)
        with torch.autocast(device, dtype):
            losses = instances(net(x))
        report = lightning_jd.backward(losses, net, "upgrad")
        found.append([host(p.grad).float() for p in net.parameters()])
        assert report.gramian is not None
        assert report.gramian.dtype is torch.float32
    scale = max(float(g.abs().max()) for g in found[0])
    assert_close(found[1], found[0], rtol=0.05, atol=0.02 * scale)

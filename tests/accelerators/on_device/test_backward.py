"""``backward`` on the device: the gradients of the CPU, and at most one wait in a steady step."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import lightning_jd
from examples.lab.arguments import spec
from lightning_jd import optim
from lightning_jd.aggregators import Balancer, GramianAggregator, available, resolve
from lightning_jd.errors import NonFiniteError
from tests.pretended import DEVICE, host, synchronisations

STEPS = 3
WEIGHTED = [name for name, cls in available().items() if issubclass(cls, GramianAggregator)]


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


FORMS: dict[str, Callable[[list[Tensor]], Any]] = {
    "instances": lambda outputs: torch.stack(outputs).square().sum(dim=0),
    "tasks": lambda outputs: {str(k): (y - 1).square().mean() for k, y in enumerate(outputs)},
    "matrix": lambda outputs: (torch.stack(outputs, dim=1) - 0.5).square(),
}


def steps(device: Any, dtype: torch.dtype, form: str, **options: Any) -> list[Tensor]:
    """Parameters and weights after a few steps of SGD."""
    torch.manual_seed(0)
    net = Net().to(device, dtype)
    x = torch.randn(STEPS, 4, 2, 5, 5, dtype=dtype).to(device)
    found: list[Tensor] = []
    for batch in x:
        net.zero_grad()
        report = lightning_jd.backward(FORMS[form](net(batch)), net, "upgrad", **options)
        if report.known_weights is not None:
            found.append(report.weights)
        with torch.no_grad():
            for p in net.parameters():
                p -= 0.05 * p.grad
    found += net.parameters()
    assert all(tensor.device.type == torch.device(device).type for tensor in found)
    return [host(tensor) for tensor in found]


def assert_same(form: str, dtype: torch.dtype = torch.float64, **options: Any) -> None:
    rtol = 1e-8 if dtype is torch.float64 else 1e-3
    expected, found = (steps(d, dtype, form, **options) for d in ("cpu", DEVICE))
    assert_close(found, expected, rtol=rtol, atol=rtol / 10)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("memory", ["fast", "low"])
@pytest.mark.parametrize("groups", [None, "layer"])
def test_an_option_gives_the_steps_of_the_cpu(form: str, memory: str, groups: str | None) -> None:
    assert_same(form, memory=memory, groups=groups)


@pytest.mark.parametrize("select", ["trunk.*", "shared"])
def test_a_selection_gives_the_steps_of_the_cpu(select: str) -> None:
    assert_same("tasks", params=select)


def test_gradients_that_are_not_finite_are_named() -> None:
    weight = nn.Parameter(torch.ones(3, device=DEVICE))
    x = torch.tensor([[1.0, 1, 1], [0, 0, 0]]).to(DEVICE)
    with pytest.raises(NonFiniteError, match="Gradients must be finite"):
        lightning_jd.backward((x * weight).norm(dim=1).sqrt(), [weight], "upgrad")
    with pytest.raises(NonFiniteError, match="Losses must be finite"):
        lightning_jd.backward((x * weight).sum(dim=1).log(), [weight], "upgrad")


def test_autocast_gives_the_gradients_of_the_cpu() -> None:
    found = []
    for device in ("cpu", DEVICE.type):
        torch.manual_seed(0)
        net = Net().to(device)
        x = torch.randn(4, 2, 5, 5).to(device)
        with torch.autocast(device, torch.bfloat16):
            losses = FORMS["instances"](net(x))
        report = lightning_jd.backward(losses, net, "upgrad")
        found.append([host(p.grad).float() for p in net.parameters()])
        assert report.gramian is not None
        assert report.gramian.dtype is torch.float32
    scale = max(float(g.abs().max()) for g in found[0])
    assert_close(found[1], found[0], rtol=0.05, atol=0.02 * scale)


@pytest.mark.parametrize("name", [*WEIGHTED, *available("balancers")])
def test_a_step_waits_at_most_once(name: str) -> None:
    method = resolve(spec(name, 4))
    assert isinstance(method, GramianAggregator | Balancer)
    form = "matrix" if method.halves else "tasks"
    torch.manual_seed(0)
    net, x = Net().to(DEVICE), torch.randn(4, 2, 5, 5).to(DEVICE)
    for _ in range(5):  # the first certifies
        found = FORMS[form](net(x))
        with synchronisations() as waits:
            lightning_jd.backward(found, net, method)
    assert len(waits) <= 1, "; ".join(map(str, waits))


@pytest.mark.parametrize("name", optim.__all__)
def test_an_optimizer_waits_once_and_steps_as_on_the_cpu(name: str) -> None:
    arguments = {"momentum": 0.9} if name == "SGD" else {}
    finals = []
    for device in (DEVICE, torch.device("cpu")):
        params = [torch.ones(4, 3).to(device).requires_grad_() for _ in range(2)]
        optimizer = getattr(optim, name)(params, lr=0.1, **arguments)
        for t in range(5):
            generator = torch.Generator().manual_seed(t)
            for p in params:
                p.grad = torch.randn(4, 3, generator=generator).to(device)
            with synchronisations() as waits:
                optimizer.step()
        assert len(waits) == (1 if device == DEVICE else 0), "; ".join(map(str, waits))
        finals.append([host(p.detach()) for p in params])
    assert_close(*finals, rtol=1e-6, atol=1e-7)

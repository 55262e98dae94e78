"""A steady step of a method that has weights makes the host wait at most once."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lightning_jd
from lightning_jd import optim
from lightning_jd.aggregators import Balancer, GramianAggregator, available, resolve
from tests.helpers.examples import spec
from tests.pretended import DEVICE, host, synchronisations

WEIGHTED = [name for name, cls in available().items() if issubclass(cls, GramianAggregator)]


@pytest.mark.parametrize("groups", [None, "layer"])
@pytest.mark.parametrize("name", [*WEIGHTED, *available("balancers")])
def test_a_step_waits_at_most_once(name: str, groups: Any) -> None:
    if groups and name in ("fromfeatures", "weightsevery"):
        return  # they refuse them
    method = resolve(spec(name, 4))
    assert isinstance(method, GramianAggregator | Balancer)
    trunk = nn.Sequential(nn.Linear(5, 8), nn.Tanh())
    model = nn.ModuleList([trunk, *(nn.Linear(8, 1 + k % 2) for k in range(4))]).to(DEVICE)
    x, y = torch.randn(16, 5).to(DEVICE), torch.randn(16, 4).to(DEVICE)

    def losses() -> Tensor | list[Tensor]:
        z = model[0](x)
        errors = [(head(z) - y[:, k : k + 1]).square().mean(1) for k, head in enumerate(model[1:])]
        return torch.stack(errors, dim=1) if method.halves else [each.mean() for each in errors]

    for _ in range(5):  # the first certifies, a later one measures
        found = losses()
        with synchronisations() as waits:
            lightning_jd.backward(found, model, method, groups=groups)
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
    for a, b in zip(*finals, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)

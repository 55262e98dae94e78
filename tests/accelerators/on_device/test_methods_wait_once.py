"""In a steady step every method that has weights makes the host wait once, and no more."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lightning_jd
from lightning_jd.aggregators import Balancer, GramianAggregator, available, balancers, resolve
from tests.pretended import DEVICE, synchronisations

ARGUMENTS: dict[str, dict[str, Any]] = {
    "constant": {"weights": [1.0, 0.5, 2.0, 1.0]},
    "krum": {"n_byzantine": 0},
}
WEIGHTED = [name for name, cls in available().items() if issubclass(cls, GramianAggregator)]


@pytest.mark.parametrize("name", [*WEIGHTED, *balancers()])
def test_a_step_waits_once(name: str) -> None:
    method = resolve({"name": name, **ARGUMENTS.get(name, {})})
    assert isinstance(method, GramianAggregator | Balancer)
    trunk = nn.Sequential(nn.Linear(5, 8), nn.Tanh())
    model = nn.ModuleList([trunk, *(nn.Linear(8, 1 + k % 2) for k in range(4))]).to(DEVICE)
    x, y = torch.randn(16, 5).to(DEVICE), torch.randn(16, 4).to(DEVICE)

    def losses() -> Tensor | list[Tensor]:
        z = model[0](x)
        errors = [(head(z) - y[:, k : k + 1]).square().mean(1) for k, head in enumerate(model[1:])]
        return torch.stack(errors, dim=1) if method.halves else [each.mean() for each in errors]

    for _ in range(3):  # the first certifies
        found = losses()
        with synchronisations() as waits:
            lightning_jd.backward(found, model, method)
    assert len(waits) <= 1, "; ".join(map(str, waits))

"""How often a step waits for the device, once its kind of graph is known."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lightning_jd
from lightning_jd.aggregators import GramianAggregator, available, resolve
from tests.pretended import DEVICE, synchronisations

ARGUMENTS: dict[str, dict[str, Any]] = {
    "constant": {"weights": [0.1, 0.2, 0.3]},
    "krum": {"n_byzantine": 0},
}
METHODS = [
    name
    for name, cls in available().items()
    if (issubclass(cls, GramianAggregator) or name in available("balancers"))
    and not cls.halves
    and name not in ("fromfeatures", "weightsevery")  # which run passes of their own
]


def losses(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    return dict(zip("abc", model(x).square().mean(dim=0).unbind(), strict=True))


@pytest.mark.parametrize("groups", [None, "layer"])
@pytest.mark.parametrize("name", METHODS)
def test_a_step_waits_once(name: str, groups: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).to(DEVICE)
    x = torch.randn(4, 5).to(DEVICE)
    method = resolve({"name": name, **ARGUMENTS.get(name, {})})
    for _ in range(5):  # the first ones are certified, or measure
        lightning_jd.backward(losses(model, x), model, method, groups=groups)
    given = losses(model, x)
    with synchronisations() as found:
        lightning_jd.backward(given, model, method, groups=groups)
    assert len(found) <= 1, "; ".join(map(str, found))

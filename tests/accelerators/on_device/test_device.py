"""The pretended device itself: it refuses what a device refuses, and counts what makes us wait."""

import io
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.pretended import DEVICE, host, no_synchronisation, synchronisations


@pytest.fixture
def x() -> Tensor:
    return torch.randn(3, 4).to(DEVICE)


def kinds(function: object, *args: object) -> list[str]:
    with synchronisations() as found:
        function(*args)  # type: ignore[operator]
    return [each.kind for each in found]


@pytest.mark.parametrize(
    ("kind", "ask"),
    [
        ("item", lambda x: x.sum().item()),
        ("item", lambda x: bool((x > 0).all())),
        ("allclose", lambda x: torch.allclose(x, x)),
        ("tolist", lambda x: x.tolist()),
        ("to host", lambda x: x.cpu()),
        ("to host", lambda x: torch.empty(3, 4).copy_(x)),
        ("to host", lambda x: x.to("cpu", non_blocking=True)),  # the memory is not pinned
        ("to device", lambda x: torch.ones(2).to(DEVICE)),
        ("to device", lambda x: x.new_tensor([1.0])),
        ("to device", lambda x: torch.as_tensor(np.ones(3), device=DEVICE)),
        ("nonzero", lambda x: (x > 0).nonzero()),
        ("masked_select", lambda x: x.masked_select(x > 0)),
        ("boolean index", lambda x: x[x > 0]),
        ("index from the host", lambda x: x[torch.tensor([0, 2])]),
        ("_unique2", lambda x: x.unique()),
        ("equal", lambda x: torch.equal(x, x)),
        ("repr", lambda x: str(x)),
        ("format", lambda x: f"{x.sum():.2f}"),
        ("_linalg_check_errors", lambda x: torch.linalg.cholesky(x @ x.T + torch.eye(3).to(x))),
        ("pickle", lambda x: torch.save(x, io.BytesIO())),
        ("synchronize", lambda x: torch.get_device_module(DEVICE).synchronize()),
    ],
)
def test_it_counts(kind: str, ask: object, x: Tensor) -> None:
    assert kind in kinds(ask, x)


def test_ordinary_work_waits_for_nothing(x: Tensor) -> None:
    layer = nn.Linear(4, 2).to(DEVICE)
    with no_synchronisation():
        y = torch.ones(2, 3).to(DEVICE, non_blocking=True)
        h = F.dropout(layer(x).relu(), 0.5)
        (y @ h).sum().backward()
        x[1:, 2], torch.eye(3, device=DEVICE), x.new_zeros(2), torch.arange(3, device=DEVICE)
        torch.linalg.cholesky_ex(x @ x.T)
        torch.where(x > 0, x, 0.0), x.masked_fill(x > 0, 1.0), x.amax(), x.clone().add_(1)
        x.to(torch.float64), torch.zeros_like(x), torch.stack([x, x]), x.sort(dim=1), x.argmax()


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: x + torch.ones(3, 4),
        lambda x: torch.ones(3, 4) * x.sum(),
        lambda x: torch.cat([x, torch.ones(1, 4)]),
        lambda x: torch.stack([x.sum(), torch.tensor(1.0)]),
        lambda x: x @ torch.ones(4),
        lambda x: torch.where(x > 0, x, torch.zeros(4)),
        lambda x: torch.ones(3).index_select(0, torch.arange(3, device=DEVICE)),
        lambda x: F.linear(x, torch.ones(2, 4)),
    ],
)
def test_it_does_not_mix_with_the_host(mix: object, x: Tensor) -> None:
    with pytest.raises(RuntimeError, match="all tensors must be on one device"):
        mix(x)  # type: ignore[operator]


@pytest.mark.parametrize("ask", [lambda x: x.numpy(), np.asarray, lambda x: np.add(x, 1)])
def test_it_is_no_numpy_array(ask: object, x: Tensor) -> None:
    with pytest.raises((RuntimeError, TypeError)):
        ask(x)  # type: ignore[operator]


def test_autograd_runs_in_a_thread_of_the_device(x: Tensor) -> None:
    threads = []
    weight = nn.Parameter(torch.ones(4, device=DEVICE))
    y = x * weight
    y.register_hook(lambda gradient: threads.append(threading.get_ident()))
    y.sum().backward()
    assert weight.grad is not None
    assert len(threads) == 1
    assert threads != [threading.get_ident()]
    torch.testing.assert_close(host(weight.grad), host(x).sum(dim=0))

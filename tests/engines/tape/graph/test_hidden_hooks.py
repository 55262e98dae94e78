"""Saved tensors that do not show their hooks, as before torch 2.13: the same results."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from lightning_jd import backward, jacobian
from lightning_jd.engines.tape.graph import _records
from lightning_jd.engines.tape.run import _trace
from tests.helpers.rows import flat_gradient

Pass = Callable[[nn.Module, Tensor], Tensor]


def recomputed(net: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = checkpoint(net, x, use_reentrant=False)
    return out


def loaded(net: nn.Module, x: Tensor) -> Tensor:
    with save_on_cpu():
        out: Tensor = net(x)
    return out


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.first(x)[x[:, 0].argsort()].tanh())
        return out


@pytest.mark.parametrize("run", [recomputed, loaded, lambda net, x: net(x)])
def test_hidden_hooks(run: Pass, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_records, "SHOWS_HOOKS", False)
    monkeypatch.setattr(_trace, "SHOWS_HOOKS", False)
    torch.manual_seed(0)
    net = Net().double()
    for _ in range(5):  # interpreted, traced, replayed
        x = torch.randn(6, 4, dtype=torch.float64)
        losses = run(net, x).square().sum(dim=1)
        J = jacobian(net(x).square().sum(dim=1), net)
        net.zero_grad()
        report = backward(losses, net, "upgrad")
        assert_close(report.gramian, J @ J.T)
        assert_close(flat_gradient(net), report.weights.to(J) @ J)

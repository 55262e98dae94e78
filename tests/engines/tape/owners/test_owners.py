"""Owners are right in every precision, read from indices or found by experiment."""

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_jd.engines import Objectives, Tape
from lightning_jd.engines.tape.owners.flow import _registry

D = 8


class Permuted(nn.Module):
    """The losses come in another order than the inputs."""

    def __init__(self, m: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(D, D), nn.Tanh(), nn.Linear(D, 3))
        self.order = torch.randperm(m)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x.flatten(1)).index_select(0, self.order)


class Gathered(Permuted):
    def forward(self, x: Tensor) -> Tensor:
        return self.body(x.flatten(1)).gather(0, self.order[:, None].expand(-1, 3))


class GraphNetwork(nn.Module):
    """Graphs of two to four nodes in one batch, their nodes in random order."""

    def __init__(self, m: int) -> None:
        super().__init__()
        sizes = torch.randint(2, 5, (m,))
        self.graph_of = torch.arange(m).repeat_interleave(sizes)[torch.randperm(int(sizes.sum()))]
        n = len(self.graph_of)
        source = torch.arange(n).repeat_interleave(3)
        target = torch.randint(n, (3 * n,))
        inside = self.graph_of[source] == self.graph_of[target]
        self.source, self.target = source[inside], target[inside]
        self.first, self.second = nn.Linear(D, D), nn.Linear(D, 3)
        self.m = m

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x.reshape(-1, D)[: len(self.graph_of)])
        messages = h.index_select(0, self.source)
        h = torch.tanh(h.index_add(0, self.target, messages))
        index = self.graph_of[:, None].expand(-1, D)
        pooled = h.new_zeros(self.m, D).scatter_add(0, index, h)
        return self.second(pooled)


class GroupedQueries(nn.Module):
    """Causal attention with shared keys and values: the first token sees only itself."""

    def __init__(self, m: int) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(D, D), nn.Linear(D, D // 2), nn.Linear(D, D // 2)
        self.out = nn.Linear(D, 3)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(2, (4, -1)).transpose(1, 2)
        k = self.k(x).unflatten(2, (2, -1)).transpose(1, 2).repeat_interleave(2, dim=1)
        v = self.v(x).unflatten(2, (2, -1)).transpose(1, 2).repeat_interleave(2, dim=1)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(h.transpose(1, 2).flatten(2)).mean(dim=1)


class Experts(nn.Module):
    """Every input goes to two of three experts."""

    def __init__(self, m: int) -> None:
        super().__init__()
        self.gate = nn.Linear(D, 3)
        self.experts = nn.ModuleList([nn.Linear(D, D) for _ in range(3)])
        self.head = nn.Linear(D, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        weight, choice = self.gate(x).softmax(dim=1).topk(2, dim=1)
        total = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            who, which = torch.where(choice == e)
            part = torch.tanh(expert(x[who])) * weight[who, which, None]
            total = total.index_add(0, who, part.to(total.dtype))
        return self.head(total)


MODELS: list[Callable[[int], nn.Module]] = [
    Permuted,
    Gathered,
    GraphNetwork,
    GroupedQueries,
    Experts,
]
TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(params=["read", "by experiment"])
def way(request: Any) -> Iterator[str]:
    """Flows as they are, or without those that move slices from owner to owner."""
    unknown = ("Index", "Gather", "Scatter", "ScaledDot")
    known = {n: f for n, f in _registry._FLOWS.items() if not n.startswith(unknown)}
    with patch.dict(_registry._FLOWS, known, clear=request.param != "read"):
        yield request.param


def jacobian(losses: Tensor, model: nn.Module) -> Tensor:
    """Some rows, by ordinary autograd."""
    rows = []
    for loss in losses[_some(len(losses))]:
        gradients = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        rows.append(torch.cat([g.flatten().double() for g in gradients]))
    return torch.stack(rows)


def _some(m: int) -> slice:
    return slice(None, None, m // 64)


def error(G: Tensor, exact: Tensor) -> float:
    """The largest error of an entry, relative to the lengths of its two gradients."""
    lengths = exact.diagonal().sqrt()
    return float(((G.double() - exact).abs() / (lengths[:, None] * lengths[None])).max())


@pytest.mark.parametrize("m", [64, pytest.param(1024, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("build", MODELS)
def test_the_gramian_is_as_exact_as_rows(
    build: Callable[[int], nn.Module], dtype: torch.dtype, m: int, way: str
) -> None:
    torch.manual_seed(0)
    model = build(m).to(dtype)
    x = torch.randn(m, 4 if build in (GraphNetwork, GroupedQueries) else 1, D).to(dtype)
    y = torch.randint(3, (m,))
    scores = model(x)
    losses = F.cross_entropy(
        scores if dtype == torch.float64 else scores.float(), y, reduction="none"
    )
    tape = Tape(Objectives.of(losses), list(model.named_parameters()), check="off")
    G = tape.gramian()[_some(m), _some(m)]
    slow = [name for name, path in tape.paths.items() if path == "rows"]
    assert not slow, f"{way}: {slow}"
    J = jacobian(losses, model)
    if dtype is not torch.float64:
        model.double()
        exact = jacobian(F.cross_entropy(model(x.double()), y, reduction="none"), model)
    else:
        exact = J
    noise = error(J @ J.T, exact @ exact.T)
    assert error(G, exact @ exact.T) <= max(2 * noise, 20 * torch.finfo(G.dtype).eps)


class OfSign(torch.autograd.Function):
    """Its gradient has no scale, so no experiment with scales can tell whose it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, D: Tensor) -> Tensor:
        return D.sign()


class Reversed(torch.autograd.Function):
    """An operation that nobody knows: the instances come back in another order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.flip(0)

    @staticmethod
    def backward(ctx: Any, D: Tensor) -> Tensor:
        return D.flip(0)


@pytest.mark.parametrize(
    ("function", "path"), [(OfSign, "rows"), (Reversed, "rule AddmmBackward0")]
)
def test_unknown_functions_are_tried_out(
    function: type[torch.autograd.Function], path: str
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(D, 3).double()
    losses = function.apply(model(torch.randn(100, D).double())).square().sum(dim=1)
    tape = Tape(Objectives.of(losses), list(model.named_parameters()), check="off")
    G = tape.gramian()
    assert set(tape.paths.values()) == {path}
    J = jacobian(losses, model)
    torch.testing.assert_close(G, J @ J.T)


@pytest.mark.parametrize("m", [40, 130])
def test_owners_may_mix_from_one_step_to_the_next(m: int) -> None:
    """What held in one step is not believed in the next."""
    torch.manual_seed(0)
    model = nn.Linear(D, 3).double()
    x = torch.randn(m, D).double()

    class Sometimes(torch.autograd.Function):
        mixes = False

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, D: Tensor) -> Tensor:
            mixed = D.clone()
            mixed[0] += 1e-9 * D[1]
            return mixed if Sometimes.mixes else D

    for Sometimes.mixes in (False, True, False):
        losses = Sometimes.apply(model(x)).square().sum(dim=1)
        tape = Tape(Objectives.of(losses), list(model.named_parameters()), check="off")
        tape.gramian()
        assert set(tape.paths.values()) == {"rows" if Sometimes.mixes else "rule AddmmBackward0"}

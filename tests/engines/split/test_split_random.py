"""Losses put together at random: rows add up to the gradient, and belong to whom they should."""

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_jd.engines import jacobian, split_loss
from tests.helpers.rows import rows_by_autograd

B = 7
GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(B, 5, generator=GENERATOR, dtype=torch.float64)
Y = torch.randint(0, 4, (B,), generator=GENERATOR)
T = torch.rand(B, 4, generator=GENERATOR, dtype=torch.float64)
MASK = (torch.rand(B, generator=GENERATOR) > 0.3).double()

VECTORS: list[Callable[[Tensor], Tensor]] = [
    lambda o: F.cross_entropy(o, Y, reduction="none"),
    lambda o: (o - T).square().mean(dim=1),
    lambda o: (o - T).abs().sum(dim=1),
    lambda o: o.exp().mean(dim=1),
    lambda o: F.huber_loss(o, T, reduction="none").mean(dim=1),
    lambda o: (o * T).sum(dim=1).sigmoid(),
    lambda o: F.softplus(o).mean(dim=1),
    lambda o: o.norm(dim=1),
    lambda o: F.cosine_similarity(o, T),
    lambda o: o.logsumexp(dim=1),
    lambda o: (o.softmax(dim=1) * T).sum(dim=1).clamp(min=1e-3).log(),
    lambda o: F.binary_cross_entropy_with_logits(o, T, reduction="none").mean(dim=1),
]
REDUCTIONS: list[Callable[[Tensor], Tensor]] = [
    lambda v: v.mean(),
    lambda v: v.sum(),
    lambda v: v.sum() / B,
    lambda v: (v * MASK).sum() / MASK.sum(),
    lambda v: 2 * v.mean() - 1,
]


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4)).double()


def loss_of(out: Tensor, seed: int) -> Tensor:
    draw = random.Random(seed)
    vector = draw.choice(VECTORS)(out)
    if draw.random() < 0.3:
        vector = vector * draw.choice(VECTORS)(out)
    if draw.random() < 0.3:
        vector = vector + draw.uniform(0.1, 2) * draw.choice(VECTORS)(out)
    loss = draw.choice(REDUCTIONS)(vector)
    if draw.random() < 0.4:
        loss = loss - 0.3 * draw.choice(REDUCTIONS)(draw.choice(VECTORS)(out))
    return loss


@pytest.mark.parametrize("seed", range(60))
def test_instances(seed: int) -> None:
    net = network()
    loss = loss_of(net(X), seed)
    J = jacobian(split_loss(loss, "instances"), net)
    # In the direction of the gradient, all examples together: proportions are kept.
    gradient = rows_by_autograd([loss], net)[0]
    total = J.sum(dim=0)
    assert_close(total / total.norm(), gradient / gradient.norm(), rtol=1e-7, atol=1e-9)
    # And a change of one example changes the row of that example only.
    changed = X.clone()
    changed[seed % B] += 1.0
    others = torch.arange(B) != seed % B
    again = jacobian(split_loss(loss_of(net(changed), seed), "instances"), net)
    assert_close(again[others], J[others], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("seed", range(30))
def test_terms(seed: int) -> None:
    draw = random.Random(seed)
    net = network()
    out = net(X)
    parts = [loss_of(out, seed + 100 * i) * loss_of(out, seed + 50 * i) for i in range(1, 5)]
    factors = [draw.uniform(-2, 2) for _ in parts]
    loss = sum(f * part for f, part in zip(factors, parts, strict=True))
    assert isinstance(loss, Tensor)
    split = split_loss(loss, "terms")
    J = jacobian([f * part for f, part in zip(factors, parts, strict=True)], net)
    assert_close(jacobian(split, net), J, rtol=1e-9, atol=1e-12)


def test_many_ways_through_the_graph_are_walked_once() -> None:
    net = network()
    x = net(X)
    for _ in range(60):  # two ways through each: too many to try them all
        x = x + 0.01 * x
    J = jacobian(x.mean(dim=1), net)
    assert_close(jacobian(split_loss(x.mean(), "instances"), net), J, rtol=1e-9, atol=1e-12)
    split = split_loss(x.mean() + x.square().mean(), "terms")
    assert split.m == 2

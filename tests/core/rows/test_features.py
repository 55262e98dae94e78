"""Weights from the features: where they are in the graph, and what comes of them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge
from torch.testing import assert_close

import lightning_jd
from lightning_jd.aggregators import MGDA, FromFeatures, Step, UPGrad
from lightning_jd.core.rows._feature_edges import cut_of
from lightning_jd.core.rows._features import features_gramian
from lightning_jd.engines import Objectives
from lightning_jd.errors import ArgumentError, GraphError
from tests.helpers.matrices import normal


class TrunkAndHeads(nn.Module):
    def __init__(self, tasks: int = 3) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.trunk = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh())
            self.heads = nn.ModuleList(nn.Linear(5, 1) for _ in range(tasks))
        self.double()

    def losses(self, seed: int = 0) -> tuple[dict[str, Tensor], Tensor]:
        features = self.trunk(normal(seed, 8, 4))
        found = {
            str(k): (head(features).squeeze(1) - normal(seed + k + 1, 1, 8)[0]).square().mean()
            for k, head in enumerate(self.heads)
        }
        return found, features


def test_the_features_are_the_outputs_of_the_trunk() -> None:
    losses, features = TrunkAndHeads().losses()
    ((node, _),) = cut_of(Objectives.of(losses), None, []).places
    assert node is features.grad_fn
    rows = [
        torch.autograd.grad(loss, features, retain_graph=True)[0].flatten()
        for loss in losses.values()
    ]
    J = torch.stack(rows)
    assert_close(features_gramian(Objectives.of(losses)), J @ J.T, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("select", ["all", "shared"])
def test_the_update_has_the_weights_of_the_features(select: Any) -> None:
    model, expected = TrunkAndHeads(), TrunkAndHeads()
    report = lightning_jd.backward(
        model.losses()[0], model, FromFeatures(UPGrad(reg=0)), params=select
    )
    losses, _ = expected.losses()
    w = UPGrad(reg=0).weights(features_gramian(Objectives.of(losses)))
    assert report.weights is not None
    assert_close(report.weights, w, rtol=1e-10, atol=1e-12)
    torch.stack(list(losses.values())).backward(w)
    for (name, a), b in zip(model.named_parameters(), expected.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        if select == "shared" and name.startswith("heads"):
            scale = w[int(name.split(".")[1])]
            assert_close(a.grad * scale, b.grad, rtol=1e-9, atol=1e-12)
        else:
            assert_close(a.grad, b.grad, rtol=1e-9, atol=1e-12)


def test_behind_an_orthogonal_map_they_are_the_exact_weights() -> None:
    Q = torch.linalg.qr(normal(3, 6, 6)).Q
    for spec in (UPGrad(reg=0), MGDA()):
        gradients = []
        for method in (spec, FromFeatures(spec)):
            p = nn.Parameter(normal(4, 1, 6)[0])
            z = Q @ p
            targets = normal(5, 4, 6)
            losses = [((z - target) ** 2 * (k + 1)).sum() for k, target in enumerate(targets)]
            lightning_jd.backward(losses, [p], method)
            assert p.grad is not None
            gradients.append(p.grad)
        assert_close(gradients[1], gradients[0], rtol=1e-8, atol=1e-10)


def test_the_trunk_is_differentiated_once_and_linear_heads_too() -> None:
    model, counts = TrunkAndHeads(), {"trunk": 0, "head": 0}

    def counted(name: str) -> Any:
        def hook(*_: Any) -> None:
            counts[name] += 1

        return hook

    features = model.trunk(normal(0, 8, 4))
    features.grad_fn.next_functions[0][0].register_hook(counted("trunk"))  # type: ignore[union-attr]
    losses = []
    for head in model.heads:
        out = head(features)
        out.grad_fn.register_hook(counted("head"))
        losses.append(out.square().mean())
    lightning_jd.backward(losses, model, "fromfeatures")
    assert counts == {"trunk": 1, "head": 3}  # the gradient at their input is not computed twice


def test_where_there_are_no_features_it_says_so() -> None:
    layer = nn.Linear(3, 1)
    losses = [layer(torch.randn(4, 3)).square().mean() for _ in range(2)]
    with pytest.raises(GraphError, match=r"in 2 parameters only. The graph: Mean -> Pow -> Addmm"):
        lightning_jd.backward(losses, layer, "fromfeatures")
    with pytest.raises(GraphError, match=r"several losses that are tasks.*got 4 instances"):
        lightning_jd.backward(layer(torch.randn(4, 3)).squeeze(1), layer, "fromfeatures")
    joint = nn.Linear(3, 2)(torch.randn(4, 3)).square().mean(dim=0)
    with pytest.raises(GraphError, match="tasks part only at their losses"):
        lightning_jd.backward(list(joint), layer, "fromfeatures")
    with pytest.raises(ArgumentError, match="keeps a state between steps"):
        lightning_jd.backward(losses, layer, {"name": "fromfeatures", "aggregator": "gradvac"})
    for spec in ("graddrop", "modo", "uw"):
        with pytest.raises(
            ArgumentError, match="`aggregator` must compute weights from one sample"
        ):
            FromFeatures(spec)


HEADS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(6, 1),
    "linear_without_bias": lambda: nn.Linear(6, 2, bias=False),
    "wide": lambda: nn.Linear(6, 9),  # whose factors are larger than the gradient
    "mlp": lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)),
    "tokens": lambda: nn.Sequential(nn.Unflatten(1, (3, 2)), nn.Linear(2, 4)),
    "convolution": lambda: nn.Sequential(nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 2, 2)),
    "norm": lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 2)),
}


class Twice(nn.Module):
    """A head that comes to the features by two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 2), nn.Linear(6, 2)

    def forward(self, z: Tensor) -> Tensor:
        return self.first(z) * self.second(z) + z[:, :2]


MIXED = {**HEADS, "twice": Twice}


def heads_on(z: Tensor, kinds: list[str]) -> list[Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        heads = [MIXED[kind]().double() for kind in kinds]
    return [(head(z) - 0.1 * k).square().flatten(1).mean(1) for k, head in enumerate(heads)]


def rows_at(losses: list[Tensor], z: Tensor) -> Tensor:
    found = [torch.autograd.grad(loss, z, retain_graph=True)[0] for loss in losses]
    return torch.stack(found).flatten(1)


@pytest.mark.parametrize("kinds", [*([kind] * 3 for kind in MIXED), list(MIXED)], ids=str)
def test_heads_of_every_kind(kinds: list[str]) -> None:
    z = (normal(0, 5, 6) @ normal(1, 6, 6).requires_grad_()).tanh()
    losses = [loss.mean() for loss in heads_on(z, kinds)]
    J = rows_at(losses, z)
    for features in (None, z):
        G = features_gramian(Objectives.of(losses), 4.0, features)
        assert_close(G, J @ J.T, rtol=1e-10, atol=1e-14)


def test_a_task_that_does_not_come_by_has_no_gradient_there() -> None:
    p = normal(0, 1, 4)[0].requires_grad_()
    z = p.sin()
    losses = [z.sum(), z.square().sum(), (2 * p).sum()]
    G = features_gramian(Objectives.of(losses))
    J = torch.stack([torch.ones(4).double(), 2 * z.detach(), torch.zeros(4).double()])
    assert_close(G, J @ J.T, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kinds", [["linear"] * 3, ["mlp", "tokens", "twice"]], ids=str)
@pytest.mark.parametrize("named", [False, True])
def test_instances_and_tasks(kinds: list[str], named: bool) -> None:
    W = nn.Parameter(normal(1, 6, 6))
    z = normal(0, 5, 6) @ W
    losses = torch.stack(heads_on(z, kinds), dim=1)
    J = rows_at(list(losses.flatten()), z)
    features = "trunk" if named else None
    G = features_gramian(Objectives.of(losses), 2.0, features, [("trunk.weight", W)])
    assert_close(G, J @ J.T, rtol=1e-10, atol=1e-14)
    report = lightning_jd.backward(losses, {"trunk.weight": W}, FromFeatures(features=features))
    assert report.weights is not None
    step = Step(report.names, kind="instances_tasks")
    assert_close(report.weights, UPGrad().weigh(J @ J.T, step), rtol=1e-6, atol=1e-8)


def test_instances_that_mix_are_noticed() -> None:
    z = normal(0, 5, 6) @ normal(1, 6, 6).requires_grad_()
    centred = z - z.mean(dim=0)
    losses = torch.stack([*heads_on(z, ["linear"] * 2), centred.square().sum(1)], dim=1)
    with pytest.raises(GraphError, match="heads that mix the instances of a batch"):
        features_gramian(Objectives.of(losses), features=z)
    flat = z.flatten()
    losses = torch.stack([flat[:6] ** 2, flat[6:12]], dim=1)
    with pytest.raises(GraphError, match=r"one slice per instance \(6\).*got shape \(30,\)"):
        features_gramian(Objectives.of(losses), features=flat)


def test_a_module_is_named() -> None:
    model = TrunkAndHeads()
    losses, features = model.losses()
    named = list(model.named_parameters())
    for pattern in ("trunk", "trunk.*", "tr*"):
        assert cut_of(Objectives.of(losses), pattern, named).places == [(features.grad_fn, 0)]
    before_tanh = features.grad_fn.next_functions[0]  # type: ignore[union-attr]
    assert cut_of(Objectives.of(losses), "trunk.2", named).places == [before_tanh]
    report = lightning_jd.backward(losses, model, FromFeatures(UPGrad(reg=0), "trunk"))
    losses, _ = model.losses()
    assert report.weights is not None
    again = cut_of(Objectives.of(losses), "trunk", named).places[0]
    edge = GradientEdge(*again)
    rows = [
        torch.autograd.grad([loss], [edge], retain_graph=True)[0].flatten()
        for loss in losses.values()
    ]
    J = torch.stack(rows)
    assert_close(report.weights, UPGrad(reg=0).weights(J @ J.T), rtol=1e-9, atol=1e-12)


def test_a_module_that_is_not_there_is_refused() -> None:
    model = TrunkAndHeads()
    with pytest.raises(GraphError, match=r"got 'encoder'. There are: 'heads.0', .*'trunk.0'"):
        lightning_jd.backward(model.losses()[0], model, FromFeatures(features="encoder"))
    apart = nn.ModuleDict({"model": model, "other": nn.Linear(1, 1)})
    with pytest.raises(GraphError, match=r"'other', whose parameters no loss reaches\. The graph:"):
        lightning_jd.backward(model.losses()[0], apart, FromFeatures(features="other"))
    with pytest.raises(GraphError, match="must be an activation of the graph"):
        lightning_jd.backward(model.losses()[0], model, FromFeatures(features=torch.ones(3)))
    other = model.trunk(torch.ones(1, 4).double())
    with pytest.raises(GraphError, match="features that no loss depends on"):
        lightning_jd.backward(model.losses()[0], model, FromFeatures(features=other))

"""With a sum they are torch's own; with an aggregator they are its definition, vector by vector."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from typing_extensions import override

from lightning_jd import optim
from lightning_jd.aggregators import GramianAggregator, UPGrad, resolve
from lightning_jd.errors import ArgumentError
from lightning_jd.optim._two_rows import Products, TwoRows
from tests.helpers.matrices import normal

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {"lr": 0.1}),
    "sgd_momentum": ("SGD", {"lr": 0.1, "momentum": 0.9}),
    "sgd_dampening": ("SGD", {"lr": 0.1, "momentum": 0.8, "dampening": 0.3, "weight_decay": 0.1}),
    "sgd_nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "sgd_maximize": ("SGD", {"lr": 0.01, "momentum": 0.9, "maximize": True}),
    "adam": ("Adam", {"lr": 0.01}),
    "adam_arguments": ("Adam", {"betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.1}),
    "adam_amsgrad": ("Adam", {"amsgrad": True, "lr": 0.01}),
    "adamw": ("AdamW", {"lr": 0.01, "weight_decay": 0.2}),
    "adamw_maximize": ("AdamW", {"lr": 0.01, "maximize": True}),
    "nadam": ("NAdam", {"lr": 0.01}),
    "nadam_decay": ("NAdam", {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "nadam_l2": ("NAdam", {"lr": 0.01, "weight_decay": 0.1, "momentum_decay": 0.1}),
}
MOMENTUM = {name: case for name, case in CASES.items() if name != "sgd"}
every_case = pytest.mark.parametrize(("name", "arguments"), CASES.values(), ids=CASES)
with_momentum = pytest.mark.parametrize(("name", "arguments"), MOMENTUM.values(), ids=MOMENTUM)


def parameters(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    shapes = [(4, 3), (5,), ()]
    return [
        normal(i, 1, 12)[0][: max(1, torch.Size(s).numel())].reshape(s).to(dtype).requires_grad_()
        for i, s in enumerate(shapes)
    ]


def set_gradients(params: list[Tensor], t: int, missing: bool = False) -> None:
    for i, p in enumerate(params):
        rotated = normal(17 * t + i, 1, 12)[0][: p.numel()].reshape(p.shape)
        p.grad = None if missing and i == t % 3 else rotated.to(p.dtype)


def run(optimizer: torch.optim.Optimizer, params: list[Tensor], steps: range, **k: Any) -> None:
    for t in steps:
        set_gradients(params, t, **k)
        optimizer.step()


@every_case
@pytest.mark.parametrize("aggregator", ["mean", "sum"])
def test_with_a_sum_it_is_that_of_torch(
    name: str, arguments: dict[str, Any], aggregator: str
) -> None:
    mine, theirs = parameters(), parameters()
    run(getattr(optim, name)(mine, aggregator=aggregator, **arguments), mine, range(12))
    run(getattr(torch.optim, name)(theirs, **arguments), theirs, range(12))
    for a, b in zip(mine, theirs, strict=True):
        assert_close(a, b, rtol=1e-10, atol=1e-12)


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def combined(aggregator: GramianAggregator, a: Tensor, b: Tensor) -> Tensor:
    if not a.any() or not b.any():
        return a + b
    factor = 2 / float(aggregator.weights(torch.eye(2).double()).sum())
    J = torch.stack([a, b])
    return factor * (aggregator.weights(J @ J.T) @ J)


@pytest.mark.parametrize("spec", ["upgrad", {"name": "upgrad", "reg": 0.0}, "mgda", "dualproj"])
@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_is_its_definition(spec: Any, nesterov: bool) -> None:
    aggregator = resolve(spec)
    assert isinstance(aggregator, GramianAggregator)
    params = parameters()
    optimizer = optim.SGD(params, lr=0.1, momentum=0.7, nesterov=nesterov, aggregator=spec)
    x, m = flat(params), None
    for t in range(90):
        set_gradients(params, t)
        g = flat([p.grad for p in params if p.grad is not None])
        m = g if m is None else combined(aggregator, 0.7 * m, g)
        x = x - 0.1 * (combined(aggregator, 0.7 * m, g) if nesterov else m)
        optimizer.step()
        assert_close(flat(params), x, rtol=1e-7, atol=1e-8)


def test_adam_is_its_definition() -> None:
    params = parameters()
    optimizer = optim.Adam(params, lr=0.01, betas=(0.8, 0.9), aggregator=UPGrad(reg=0))
    x, m, v = flat(params), torch.zeros(18).double(), torch.zeros(18).double()
    for t in range(1, 80):
        set_gradients(params, t)
        g = flat([p.grad for p in params if p.grad is not None])
        m, v = combined(UPGrad(reg=0), 0.8 * m, 0.2 * g), 0.9 * v + 0.1 * g**2
        x = x - 0.01 * (m / (1 - 0.8**t)) / ((v / (1 - 0.9**t)).sqrt() + 1e-8)
        optimizer.step()
        assert_close(flat(params), x, rtol=1e-7, atol=1e-8)


def test_nadam_is_its_definition() -> None:
    params = parameters()
    optimizer = optim.NAdam(params, lr=0.01, aggregator=UPGrad(reg=0))
    x, m, v, product = flat(params), torch.zeros(18).double(), torch.zeros(18).double(), 1.0
    for t in range(1, 80):
        set_gradients(params, t)
        g = flat([p.grad for p in params if p.grad is not None])
        m, v = combined(UPGrad(reg=0), 0.9 * m, 0.1 * g), 0.999 * v + 0.001 * g**2
        mu, ahead = (0.9 * (1 - 0.5 * 0.96 ** (s * 4e-3)) for s in (t, t + 1))
        product *= mu
        rows = m * ahead / (1 - product * ahead), g * (1 - mu) / (1 - product)
        x = x - 0.01 * combined(UPGrad(reg=0), *rows) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
        optimizer.step()
        assert_close(flat(params), x, rtol=1e-5, atol=1e-7)  # its product is kept in float32


@pytest.mark.parametrize("reg", [0.0, 1e-4, 1e-2])
def test_two_rows_have_a_closed_form(reg: float) -> None:
    two = TwoRows(UPGrad(reg=reg))
    for seed in range(50):
        J = normal(seed, 2, 3) * normal(seed, 2, 1).exp() ** 3
        G = J @ J.T
        products = Products(float(G[0, 0]), float(G[0, 1]), float(G[1, 1]))
        expected = 2 * UPGrad(reg=reg).weights(G)
        assert_close(
            torch.tensor(two(products), dtype=torch.float64), expected, rtol=1e-9, atol=1e-12
        )


def test_the_new_momentum_opposes_neither_the_old_one_nor_the_gradient() -> None:
    params = parameters()
    optimizer = optim.SGD(params, lr=0.1, momentum=0.9, aggregator={"name": "upgrad", "reg": 0.0})
    before: Tensor | None = None
    for t in range(30):
        set_gradients(params, t)
        g = flat([p.grad for p in params if p.grad is not None])
        optimizer.step()
        m = flat([optimizer.state[p]["momentum_buffer"] for p in params])
        if before is not None:
            assert float(m @ g) >= -1e-9 * float(m.norm() * g.norm())
            assert float(m @ before) >= -1e-9 * float(m.norm() * before.norm())
        before = m.clone()


class Fixed(GramianAggregator):
    """Weights that are given, and change from step to step."""

    def __init__(self, *pairs: tuple[float, float]) -> None:
        super().__init__()
        self.pairs, self.at = pairs, 0

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        self.at += 1
        pair = self.pairs[self.at % len(self.pairs)]
        return torch.tensor(pair, dtype=gramian.dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_adam_takes_any_weights_also_zero_and_negative_ones(dtype: torch.dtype) -> None:
    fixed = Fixed((1.0, 1.0), (2.0, 0.0), (0.0, 2.0), (2.5, -0.5), (2.0 - 1e-9, 1e-9))
    params = parameters(dtype)
    optimizer = optim.AdamW(params, lr=0.01, weight_decay=0.1, aggregator=fixed)
    fixed.at = 0
    x = flat(params).double()
    m, v = torch.zeros(18).double(), torch.zeros(18).double()
    for t in range(1, 20):
        set_gradients(params, t)
        g = flat([p.grad for p in params if p.grad is not None]).double()
        first, second = fixed.pairs[(t - 1) % 5] if t > 1 else (1.0, 1.0)
        m, v = first * 0.9 * m + second * 0.1 * g, 0.999 * v + 0.001 * g**2
        x = x * (1 - 0.01 * 0.1)
        x = x - 0.01 * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
        optimizer.step()
        exact = 1e-9 if dtype == torch.float64 else 1e-4
        assert_close(flat(params).double(), x, rtol=exact, atol=exact)


@with_momentum
def test_a_state_dict_continues_it(name: str, arguments: dict[str, Any], tmp_path: Path) -> None:
    whole, first = parameters(), parameters()
    run(getattr(optim, name)(whole, aggregator="rgw", **arguments), whole, range(80))
    optimizer = getattr(optim, name)(first, aggregator="rgw", **arguments)
    run(optimizer, first, range(37))
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    resumed = [p.detach().clone().requires_grad_() for p in first]
    fresh = getattr(optim, name)(resumed, aggregator="rgw", **arguments)
    fresh.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    run(fresh, resumed, range(37, 80))
    for a, b in zip(resumed, whole, strict=True):
        assert torch.equal(a, b)


@with_momentum
def test_it_continues_the_run_of_torch(name: str, arguments: dict[str, Any]) -> None:
    theirs = parameters()
    before = getattr(torch.optim, name)(theirs, **arguments)
    run(before, theirs, range(5))
    mine = [p.detach().clone().requires_grad_() for p in theirs]
    after = getattr(optim, name)(mine, aggregator="sum", **arguments)
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    run(before, theirs, range(5, 10))
    run(after, mine, range(5, 10))
    for a, b in zip(mine, theirs, strict=True):
        assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_it_is_finite_in_low_precision_and_at_any_scale(dtype: torch.dtype, scale: float) -> None:
    for name in optim.__all__:
        params = parameters(dtype)
        arguments: dict[str, Any] = {"momentum": 0.9} if name == "SGD" else {}
        optimizer = getattr(optim, name)(params, lr=1e-3 / scale, **arguments)
        for t in range(10):
            set_gradients(params, t)
            for p in params:
                assert p.grad is not None
                p.grad = p.grad * scale
            optimizer.step()
        assert all(bool(p.isfinite().all()) for p in params)


def test_what_cannot_work_is_refused() -> None:
    x = [torch.zeros(2, requires_grad=True)]
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: optim.SGD(x, aggregator="graddrop"), "must compute weights.*got graddrop"),
        (lambda: optim.SGD(x, aggregator="uw"), "must compute weights.*got uw"),
        (lambda: optim.SGD(x, lr=-1.0), "`lr` must be at least 0"),
        (lambda: optim.SGD(x, nesterov=True), "`nesterov` requires a momentum"),
        (lambda: optim.Adam(x, betas=(1.0, 0.9)), "`betas` must be at least 0 and less than 1"),
        (lambda: optim.NAdam(x, momentum_decay=-1.0), "`momentum_decay` must be at least 0"),
    ]
    for make, message in wrong:
        with pytest.raises(ArgumentError, match=message):
            make()
    gaps = torch.zeros(4, 2)[:, :1].requires_grad_()
    gaps.grad = torch.zeros(4, 1)
    with pytest.raises(ArgumentError, match="got one that is a view with gaps"):
        optim.SGD([gaps], momentum=0.9).step()
    embedding = nn.Embedding(3, 2, sparse=True)
    embedding(torch.tensor([0])).sum().backward()
    with pytest.raises(ArgumentError, match="got one that is sparse"):
        optim.SGD(embedding.parameters(), momentum=0.9).step()

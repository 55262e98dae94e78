"""The terms of a sum: found, merged, named, and differentiated like losses of their own."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_jd import backward
from lightning_jd.engines import jacobian, split_loss
from lightning_jd.errors import ArgumentError, GraphError
from tests.helpers.rows import rows_by_autograd

WEIGHTS = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)


class Parts(nn.Module):
    """Four scalars of different kinds from one network, and a learnable factor."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(5, 4)
        self.scale = nn.Parameter(torch.tensor(0.3))

    def forward(self) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(3)
        x = torch.randn(6, 5, generator=generator, dtype=self.net.weight.dtype)
        y = torch.randint(0, 4, (6,), generator=generator)
        out = self.net(x)
        return {
            "a": F.cross_entropy(out, y),
            "b": out.square().mean(),
            "c": F.mse_loss(out, torch.ones_like(out)),
            "d": out.norm(),
            "e": F.cross_entropy(out, y, label_smoothing=0.1),
            "s": self.scale,
            "v": out.mean(dim=0),
        }


#: Name to the sum and the terms that it must be split into, times their factors.
CASES: dict[str, tuple[Callable[..., Tensor], Callable[..., list[Tensor]]]] = {
    "plus": (lambda a, b, **_: a + b, lambda a, b, **_: [a, b]),
    "factors": (
        lambda a, b, c, **_: a + 0.1 * b - c / 2,
        lambda a, b, c, **_: [a, 0.1 * b, -c / 2],
    ),
    "twice is once": (
        lambda a, b, c, **_: a + 0.1 * b - c / 2 + sum([b, c]),
        lambda a, b, c, **_: [a, 1.1 * b, c / 2],
    ),
    "negated": (lambda a, b, **_: -(a + b) * 3, lambda a, b, **_: [-3 * a, -3 * b]),
    "from a number": (lambda a, b, **_: 1 - a + 2 * b, lambda a, b, **_: [-a, 2 * b]),
    "sum of a list": (lambda a, b, c, **_: sum([a, b, c]), lambda a, b, c, **_: [a, b, c]),
    "stack sum": (
        lambda a, b, c, **_: torch.stack([a, b, c]).sum(),
        lambda a, b, c, **_: [a, b, c],
    ),
    "stack mean": (
        lambda a, b, c, **_: torch.stack([a, b, c]).mean(),
        lambda a, b, c, **_: [a / 3, b / 3, c / 3],
    ),
    "weights of a buffer": (
        lambda a, b, c, **_: (torch.stack([a, b, c]) * WEIGHTS).sum(),
        lambda a, b, c, **_: [a, 2 * b, 3 * c],
    ),
    "product with a buffer": (
        lambda a, b, c, **_: torch.stack([a, b, c]) @ WEIGHTS,
        lambda a, b, c, **_: [a, 2 * b, 3 * c],
    ),
    "entry of a buffer": (
        lambda a, b, **_: WEIGHTS[1] * a + b * WEIGHTS[2],
        lambda a, b, **_: [2 * a, 3 * b],
    ),
    "cat": (
        lambda a, b, **_: torch.cat([a[None], b.reshape(1)]).sum(),
        lambda a, b, **_: [a, b],
    ),
    "unbind": (
        lambda a, b, **_: sum(torch.stack([a, b]).unbind()),  # type: ignore[arg-type]
        lambda a, b, **_: [a, b],
    ),
    "in place": (lambda a, b, **_: (a * 1).add_(b).mul_(3), lambda a, b, **_: [3 * a, 3 * b]),
    "nested": (
        lambda a, b, c, d, **_: torch.stack([a, b]).mean() + 0.3 * (c + d),
        lambda a, b, c, d, **_: [a / 2, b / 2, 0.3 * c, 0.3 * d],
    ),
    "alpha": (lambda a, b, **_: torch.add(a, b, alpha=0.3), lambda a, b, **_: [a, 0.3 * b]),
    "learned factors": (
        lambda a, b, s, **_: torch.exp(-s) * a + s + b,
        lambda a, b, s, **_: [torch.exp(-s) * a, s, b],
    ),
    "a ratio is one term": (lambda a, b, c, **_: a / b + c, lambda a, b, c, **_: [a / b, c]),
    "a vector is one term": (lambda a, v, **_: v.sum() + a, lambda a, v, **_: [v.sum(), a]),
    "smoothed labels are one term": (lambda b, e, **_: e + b, lambda b, e, **_: [e, b]),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", CASES)
def test_the_rows_are_those_of_the_terms(name: str, dtype: torch.dtype) -> None:
    whole, parts = CASES[name]
    model = Parts().to(dtype)
    losses = model()
    if dtype == torch.float32 and "buffer" in name:
        losses = {key: value.double() for key, value in losses.items()}
    loss = whole(**losses)
    split = split_loss(loss, "terms")
    J = jacobian(list(parts(**losses)), model)
    assert split.kind == "tasks"
    tolerance = {} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-14}
    assert_close(jacobian(split, model), J, **tolerance)
    assert_close(J.sum(dim=0), rows_by_autograd([loss], model)[0].to(J.dtype))


def test_names_values_and_the_whole() -> None:
    losses = Parts()()
    a, b, c, d = (losses[name] for name in "abcd")
    split = split_loss(a + 0.1 * b - c / 2 + d + c.sqrt(), "terms")
    assert split.names == ("nll_loss", "mean", "mse_loss", "linalg_vector_norm", "sqrt")
    assert_close(split.values(), torch.stack([a, 0.1 * b, -c / 2, d, c.sqrt()]).detach())
    assert_close(split.shown(), split.values().sum())
    assert split_loss(c + F.mse_loss(b, a) + c.exp(), "terms").names == (
        "mse_loss",
        "mse_loss_2",
        "exp",
    )


def test_a_value_that_nobody_kept_is_not_made_up() -> None:
    model = Parts()
    split = split_loss(model()["a"] + model.net(torch.ones(2, 5)).mean(), "terms")
    assert not split.has_values
    assert_close(split.values(), split.shown().expand(2))


def test_names_can_be_given_or_come_from_what_was_logged() -> None:
    losses = Parts()()
    a, b, c = (losses[name] for name in "abc")
    loss = a + 0.1 * b + c
    given = {"by": "terms", "names": ["classes", "size", "ones"]}
    assert split_loss(loss, given).names == ("classes", "size", "ones")
    logged = {"train/ce": a.item(), "weighted_size": 0.1 * b.item(), "epoch": 3.0}
    assert split_loss(loss, "terms", logged).names == ("train/ce", "weighted_size", "mse_loss")
    twice = {"x": a.item(), "a metric": a.item()}  # the first one counts
    assert split_loss(loss, "terms", twice).names == ("x", "mean", "mse_loss")
    ambiguous = {"x": a.item(), "y": a.item()}
    same = a + F.nll_loss(a.expand(2, 4), torch.zeros(2, dtype=torch.int64)) * -1
    assert split_loss(same, "terms", ambiguous).names == ("nll_loss", "nll_loss_2")


def test_a_sum_may_begin_with_a_leaf() -> None:
    model = Parts()
    losses = model()
    for start in (torch.tensor(0.0, requires_grad=True), torch.zeros(1, requires_grad=True)):
        split = split_loss(start + losses["b"] + losses["c"], "terms")
        assert split.names == ("mean", "mse_loss")
        assert split.shown().shape == ()
        J = jacobian([losses["b"], losses["c"]], model)
        assert_close(jacobian(split, model), J)
        again = split_loss(start + losses["b"] + losses["c"], "instances")
        assert again.m == 6
    x = torch.tensor(2.0, requires_grad=True)  # a parameter it is, if that is said
    assert split_loss(x + x.exp(), "terms", parameters=[("x", x)]).m == 2


def test_shape_1_is_split_like_a_scalar() -> None:
    model = Parts()
    losses = model()
    loss = (losses["b"] + losses["c"]).reshape(1)
    assert backward(loss, model, "upgrad", split="terms", retain_graph=True).names == (
        "mean",
        "mse_loss",
    )
    assert split_loss(losses["b"].reshape(1), "instances").m == 6
    single = F.cross_entropy(model.net(torch.ones(1, 5)), torch.tensor([1]), reduction="none")
    assert split_loss(single, "instances").m == 1  # a batch of one, not reduced


def test_penalties_of_parameters_are_one_term() -> None:
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4)).double()
    out = model(torch.ones(6, 5, dtype=torch.float64))
    penalties = [0.1 * p.square().sum() for p in model.parameters()]
    loss = out.exp().mean() + sum(penalties)
    split = split_loss(loss, "terms")
    assert split.names == ("mean", "parameters")
    J = jacobian([out.exp().mean(), torch.stack(penalties).sum()], model)
    assert_close(jacobian(split, model), J, rtol=1e-12, atol=1e-14)
    assert_close(split.values()[1], torch.stack(penalties).sum().detach())
    names = ["fit", "a", "b", "c", "d"]  # who names each of them means each of them
    assert split_loss(loss, {"by": "terms", "names": names}).names == tuple(names)


def test_a_hook_on_a_penalised_parameter_runs_once() -> None:
    model, seen = nn.Linear(5, 4).double(), list[Tensor]()
    model.weight.register_hook(seen.append)
    fit = model(torch.ones(6, 5, dtype=torch.float64)).exp().mean()
    backward(fit + sum(p.square().sum() for p in model.parameters()), model, "sum", split="terms")
    assert len(seen) == 1
    assert_close(seen[0], model.weight.grad)


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("term", "`split` must be one of 'terms', 'instances', 'auto', got 'term'"),
        ({"by": "terms", "least": 0}, "1 <= least <= most, got least=0 and most=64"),
        ({"by": "terms", "names": ["a", "a"]}, r"must have distinct names, got \['a', 'a'\]"),
        ({"wrong": 3}, "a dict with some of 'by', 'names', 'least' and 'most', got"),
        (3, "`split` must be 'terms', 'instances', 'auto', or a dict"),
    ],
)
def test_arguments_are_checked(split: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        split_loss(Parts()()["a"], split)


def test_a_single_term_is_an_error_that_shows_the_graph() -> None:
    with pytest.raises(GraphError) as caught:
        split_loss(3 * Parts()()["b"], "terms")
    text = str(caught.value)
    assert "a sum of 2 to 64 terms to be split, got 1 (Mean). Its graph ends with\nMul" in text
    assert "\n  Mean, a scalar\n    Pow (6, 4)\n      Addmm (6, 4)\n" in text
    assert "or try split='instances'" in text
    assert split_loss(Parts()()["b"], {"by": "terms", "least": 1}).m == 1


def test_too_many_terms_and_wrong_names_are_errors() -> None:
    losses = Parts()()
    many = sum(losses["a"] * losses["b"] * i for i in range(1, 5))
    assert isinstance(many, Tensor)
    with pytest.raises(GraphError, match=r"2 to 3 terms to be split, got 4 \(Mul, Mul, Mul, Mul\)"):
        split_loss(many, {"by": "terms", "most": 3})
    with pytest.raises(
        GraphError, match=r"one entry per term, got \['x'\] for 4 terms: mul, mul_2"
    ):
        split_loss(many, {"by": "terms", "names": ["x"]})
    with pytest.raises(GraphError, match="must be computed from parameters to be split"):
        split_loss(torch.ones(()), "terms")


def test_terms_of_one_compiled_function() -> None:
    model = Parts().double()
    torch.compiler.reset()

    @torch.compile(backend="aot_eager")
    def compiled() -> tuple[Tensor, Tensor]:
        out = model.net(torch.ones(6, 5, dtype=torch.float64))
        return out.square().mean(), out.exp().mean()

    first, second = compiled()
    J = jacobian([first, second * 0.1], model)
    assert_close(jacobian(split_loss(first + 0.1 * second, "terms"), model), J)


def test_a_compiled_loss_shows_nothing() -> None:
    model = Parts()
    torch.compiler.reset()
    x = torch.ones(6, 5)
    whole = torch.compile(
        lambda: model.net(x).exp().mean() + model.net(x).norm(), backend="aot_eager"
    )
    with pytest.raises(
        GraphError, match="out of a compiled function, which shows no more: compile"
    ):
        split_loss(whole(), "terms")


@pytest.mark.parametrize("aggregator", ["upgrad", "mgda", "graddrop"])
@pytest.mark.parametrize("select", ["all", "shared"])
def test_backward(aggregator: str, select: str) -> None:
    ours = Parts().double()
    theirs = deepcopy(ours)
    a, b, _, d, *_ = ours().values()
    report = backward(a + 0.1 * b - d, ours, aggregator, split="terms", params=select)
    a, b, _, d, *_ = theirs().values()
    backward([a, 0.1 * b, -d], theirs, aggregator, params=select)
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        if name != "scale":
            assert_close(mine.grad, other.grad, rtol=1e-9, atol=1e-12)
    assert report.names == ("nll_loss", "mean", "linalg_vector_norm")

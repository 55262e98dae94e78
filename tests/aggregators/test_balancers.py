"""Balancers against the definitions of their papers, autograd and TorchJD."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_jd.aggregators import (
    DWA,
    FAMO,
    GLS,
    IMTLL,
    RGW,
    RLW,
    STCH,
    UW,
    Balancer,
    Equal,
    LogLosses,
    Step,
    available,
)
from lightning_jd.errors import ArgumentError, ShapeError
from tests.helpers.matrices import normal

LOSSES = torch.tensor([0.3, 2.0, 5.0, 0.07], dtype=torch.float64)
EVERY = available("balancers")
every_balancer = pytest.mark.parametrize("cls", EVERY.values(), ids=EVERY)


def losses_at(t: int, m: int = 4) -> Tensor:
    return normal(t, 1, m)[0].exp()


def gradient(scalarization: Callable[[Tensor], Tensor], losses: Tensor) -> Tensor:
    """The weights behind a function of the losses."""
    variable = losses.clone().requires_grad_()
    return torch.autograd.grad(scalarization(variable), variable)[0]


DEFINITIONS: dict[str, tuple[Balancer, Callable[[Tensor], Tensor]]] = {
    "equal": (Equal(), lambda x: x.mean()),
    "loglosses": (LogLosses(), lambda x: x.log().sum()),
    "gls": (GLS(), lambda x: x.prod() ** (1 / len(x))),
    "stch": (STCH(mu=0.5), lambda x: 0.5 * ((x / 4 / 0.5).exp().sum()).log()),
    "stch_preference": (
        STCH(mu=0.2, preference=[1, 2, 3, 4], reference=[0.1, 0.2, 0.3, 0.4]),
        lambda x: (
            0.2
            * torch.logsumexp(
                torch.tensor([1.0, 2, 3, 4]).double()
                * (x - torch.tensor([0.1, 0.2, 0.3, 0.4]).double())
                / 0.2,
                dim=0,
            )
        ),
    ),
}


@pytest.mark.parametrize(("balancer", "definition"), DEFINITIONS.values(), ids=DEFINITIONS)
def test_weights_are_the_derivatives_of_the_definition(
    balancer: Balancer, definition: Callable[[Tensor], Tensor]
) -> None:
    assert_close(balancer.weights(LOSSES), gradient(definition, LOSSES), rtol=1e-12, atol=1e-15)


def test_dwa_is_that_of_torchjd() -> None:
    theirs = pytest.importorskip("torchjd.scalarization")
    mine, other = DWA(temperature=1.5), theirs.DWA(temperature=1.5)
    for epoch in range(5):
        for batch in range(3):
            values = losses_at(10 * epoch + batch)
            assert_close(mine.weights(values), gradient(other, values), rtol=1e-10, atol=0)
        mine.end_epoch()
        other.step()


@pytest.mark.parametrize(
    ("make", "objective"),
    [
        (UW, lambda s, x: 0.5 * ((-s).exp() * x + s)),
        (IMTLL, lambda s, x: s.exp() * x - s),
    ],
    ids=["uw", "imtll"],
)
def test_learned_weights_are_those_of_adam(make: Any, objective: Callable[..., Tensor]) -> None:
    balancer = make(lr=0.05)
    s = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([s], lr=0.05)
    for t in range(30):
        values = losses_at(t)
        expected = gradient(lambda x: objective(s.detach(), x).sum(), values)
        assert_close(balancer.weights(values), expected, rtol=1e-10, atol=0)
        adam.zero_grad()
        objective(s, values).sum().backward()
        adam.step()


def test_famo_is_that_of_torchjd_with_the_losses_of_the_next_step() -> None:
    theirs = pytest.importorskip("torchjd.scalarization")
    mine, other = (
        FAMO(lr=0.1, weight_decay=0.01),
        theirs.FAMO(4, lr=0.1, weight_decay=0.01).double(),
    )
    for t in range(20):
        values = losses_at(t)
        if t:
            other.update(values)
        assert_close(mine.weights(values), gradient(other, values), rtol=1e-5, atol=0)  # its 1e-8


def test_famo_gives_a_convex_combination_above_the_bounds() -> None:
    balancer = FAMO(lower_bounds={"0": -2.0})
    weights = balancer.weights(torch.tensor([-1.0, 2.0], dtype=torch.float64))
    assert_close(weights, torch.tensor([2 / 3, 1 / 3], dtype=torch.float64))
    with pytest.raises(ArgumentError, match=r"FAMO must have positive losses.*'0' \(-1\)"):
        balancer.weights(torch.tensor([-3.0, 2.0]))


def test_rlw_draws_what_rgw_draws() -> None:
    mine, other = RLW(seed=4), RGW(seed=4)
    for _ in range(3):
        assert torch.equal(mine.weights(torch.ones(5)), other.weights(torch.eye(5)))


@pytest.mark.parametrize("cls", [LogLosses, GLS, FAMO], ids=lambda cls: cls.name)
@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_a_logarithm_needs_positive_losses(cls: type[Balancer], bad: float) -> None:
    with pytest.raises(ArgumentError, match=rf"must have positive losses.*'1' \({bad:.4g}\)"):
        cls().weights(torch.tensor([1.0, bad]))


@every_balancer
def test_of_a_matrix_it_sees_the_tasks(cls: type[Balancer]) -> None:
    matrix = normal(3, 5, 2).exp()
    step = Step(tuple(map(str, range(10))), matrix.flatten(), "instances_tasks", columns=2)
    expected = cls().weights(matrix.mean(dim=0)) / 5
    assert_close(cls().weigh(step).view(5, 2), expected.expand(5, 2), rtol=1e-12, atol=0)


@every_balancer
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_weights_have_the_dtype_of_the_losses(cls: type[Balancer], dtype: torch.dtype) -> None:
    weights = cls().weights(LOSSES.to(dtype))
    assert weights.dtype == dtype
    tolerance = 1e-2 if dtype.itemsize == 2 else 1e-5
    expected = cls().weights(LOSSES.to(dtype).double())
    assert_close(weights.double(), expected, rtol=tolerance, atol=tolerance)


def test_arguments_must_be_in_their_range() -> None:
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: DWA(temperature=0), "`temperature` must be positive"),
        (lambda: UW(lr=-1), "`lr` must be positive"),
        (lambda: IMTLL(lr=math.nan), "`lr` must be positive"),
        (lambda: FAMO(weight_decay=-1), "`weight_decay` must be at least 0"),
        (lambda: FAMO(lower_bounds={"a": math.inf}), "`lower_bounds` must be finite"),
        (lambda: STCH(mu=0), "`mu` must be positive"),
        (lambda: STCH(preference=[1, 0]), "`preference` must be positive numbers"),
        (lambda: STCH(reference=[math.nan]), "`reference` must be finite numbers"),
    ]
    for make, message in wrong:
        with pytest.raises(ArgumentError, match=message):
            make()


def test_preferences_must_fit_the_objectives() -> None:
    with pytest.raises(ShapeError, match=r"`preference` must have one entry .* \(2\), got 3"):
        STCH(preference=[1, 2, 3]).weights(torch.ones(2))
    with pytest.raises(ArgumentError, match=r"`preference` must have an entry .* none for '1'"):
        STCH(preference={"0": 1.0}).weights(torch.ones(2))

"""Balancers against the definitions of their papers, autograd and TorchJD."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_jd.aggregators import (
    COSMOS,
    DWA,
    FAMO,
    GLS,
    IMTLL,
    PBI,
    RGW,
    RLW,
    STCH,
    UW,
    UWSO,
    Balancer,
    Equal,
    LogLosses,
    ReLoBRaLo,
    SoftAdapt,
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


@pytest.mark.parametrize("preference", [[1.0, 2.0, 3.0, 4.0], [0.1, 0.1, 5.0, 0.1]])
def test_cosmos_and_pbi_are_those_of_torchjd(preference: list[float]) -> None:
    theirs = pytest.importorskip("torchjd.scalarization")
    p = torch.tensor(preference, dtype=torch.float64)
    for t in range(5):
        values = losses_at(t)
        expected = gradient(theirs.COSMOS(2.0, p), values)
        found = COSMOS(2.0, preference).weights(values)
        assert_close(found, expected, rtol=1e-10, atol=1e-12)
        z = 0.1 * losses_at(t + 50)
        expected = gradient(theirs.PBI(5.0, p, z), values)  # it adds 1e-12 to a square
        found = PBI(5.0, preference, z.tolist()).weights(values)
        assert_close(found, expected, rtol=1e-8, atol=1e-8)


def test_losses_in_the_ratio_of_the_preference_pay_no_penalty() -> None:
    p = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    assert_close(PBI(preference=p.tolist()).weights(3 * p), p / p.norm(), rtol=1e-12, atol=0)
    assert_close(COSMOS(preference=p.tolist()).weights(3 * p), p, rtol=1e-12, atol=0)
    zero = torch.zeros(4, dtype=torch.float64)
    assert_close(PBI(preference=p.tolist()).weights(zero), p / p.norm())
    assert_close(COSMOS(preference=p.tolist()).weights(zero), p)


def test_uwso_is_a_softmax_of_the_weights_that_uw_learns() -> None:
    expected = (2 * optimal_uncertainty_weights(LOSSES) / 0.7).softmax(dim=0)
    assert_close(UWSO(temperature=0.7).weights(LOSSES), expected, rtol=1e-12, atol=0)


def optimal_uncertainty_weights(losses: Tensor) -> Tensor:
    """``exp(-s) / 2`` at the minimum over s of ``(exp(-s) l + s) / 2``."""
    return 0.5 * torch.exp(-losses.log())


@pytest.mark.parametrize("normalized", [False, True])
def test_softadapt_is_its_definition(normalized: bool) -> None:
    balancer, last = SoftAdapt(beta=0.7, normalized=normalized), losses_at(0)
    assert_close(balancer.weights(last), torch.full_like(last, 0.25))
    for t in range(1, 8):
        s = losses_at(t) - last
        s = s / s.abs().sum() if normalized else s
        powers = [math.exp(0.7 * float(change)) for change in s]
        expected = torch.tensor(powers, dtype=torch.float64) / sum(powers)
        assert_close(balancer.weights(losses_at(t)), expected, rtol=1e-12, atol=0)
        last = losses_at(t)


def test_relobralo_is_its_definition() -> None:
    balancer = ReLoBRaLo(alpha=0.8, rho=0.5, temperature=0.6, seed=3)
    draws = torch.Generator().manual_seed(3)
    first = last = losses_at(0)
    weights = torch.ones(4, dtype=torch.float64)
    lookbacks = 0
    for t in range(40):
        now = losses_at(t)
        stays = float(torch.rand((), generator=draws)) < 0.5
        lookbacks += not stays
        if t:
            history = weights if stays else 4 * (now / first / 0.6).softmax(dim=0)
            weights = 0.8 * history + 0.2 * 4 * (now / last / 0.6).softmax(dim=0)
        assert_close(balancer.weights(now), weights, rtol=1e-12, atol=0)
        last = now
    assert 10 < lookbacks < 30


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


@pytest.mark.parametrize("cls", [LogLosses, GLS, FAMO, UWSO], ids=lambda cls: cls.name)
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
        (lambda: PBI(penalty=-1), "`penalty` must be at least 0"),
        (lambda: COSMOS(penalty=math.inf), "`penalty` must be at least 0 and finite"),
        (lambda: UWSO(temperature=0), "`temperature` must be positive"),
        (lambda: SoftAdapt(beta=0), "`beta` must be positive"),
        (lambda: ReLoBRaLo(alpha=1.5), "`alpha` must be from 0 to 1"),
        (lambda: ReLoBRaLo(rho=-0.1), "`rho` must be from 0 to 1"),
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

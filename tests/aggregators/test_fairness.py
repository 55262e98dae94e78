"""Nash-MTL by the equation that characterises the bargaining solution."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from lightning_jd.aggregators import MGDA, FairGrad, NashMTL, _fairness
from lightning_jd.errors import ArgumentError
from tests.helpers.gramians import FAMILIES
from tests.helpers.matrices import EXAMPLES, MATRICES, jacobians, normal


@EXAMPLES
@given(J=jacobians(), epsilon=st.sampled_from([0.1, 1.0, 30.0]))
def test_every_objective_gains_the_same_share_or_the_point_is_stationary(
    J: Tensor, epsilon: float
) -> None:
    G = J @ J.T
    w = NashMTL(epsilon).weights(G)
    if bool((w == 0).all()):
        scaled = J / J.norm(dim=1, keepdim=True).clamp(min=1e-300)
        assert MGDA()(scaled).norm() <= 1e-6
    else:
        assert bool((w > 0).all())
        share = torch.full_like(w, epsilon**2 / len(J))
        assert_close(w * (G @ w), share, rtol=1e-6, atol=0)
        assert_close(float((J.T @ w).norm()), epsilon, rtol=1e-6, atol=0)


def test_no_feasible_direction_has_a_larger_product_of_gains() -> None:
    J = MATRICES["strongly_conflicting"]
    best = (J @ NashMTL()(J)).log().sum()
    for seed in range(200):
        d = NashMTL()(J) + 0.1 * normal(seed, 1, 9)[0]
        gains = J @ (d / d.norm())
        assert bool((gains <= 0).any()) or gains.log().sum() <= best


def test_next_to_a_stationary_point_every_objective_still_gains() -> None:
    for tilt in (1e-2, 1e-4, 1e-6):
        J = torch.tensor([[1.0, tilt, 0.0], [-1.0, tilt, 0.0], [0.0, 1.0, 1.0]]).double()
        gains = J @ NashMTL()(J)
        assert bool((gains > 0).all())


def test_too_many_steps_are_no_silent_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fairness, "_MAX_STEPS", 1)
    with pytest.warns(RuntimeWarning, match="converge in 1 Newton steps: the update .* is zero"):
        assert not NashMTL().weights(FAMILIES["conflicting"](6, 0)).any()


# --- FairGrad with a small alpha: an answer that satisfies its equation, or a clear error


@pytest.mark.parametrize("alpha", [0.2, 0.1, 0.05])
def test_the_equation_holds(alpha: float) -> None:
    J = torch.tensor([[1.0, 0.0], [-0.9, 0.1]], dtype=torch.float64)
    w = FairGrad(alpha).weights(J @ J.T)
    assert_close(J @ J.T @ w, w ** (-1 / alpha), rtol=1e-6, atol=0)


MANY = torch.randn(20, 10, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("J", [MANY, torch.diag(torch.tensor([1.0, 1e-4]))])
def test_too_small_is_an_error_with_a_remedy(J: torch.Tensor) -> None:
    with pytest.raises(ArgumentError, match=r"`alpha` must be large enough.*Choose a larger alpha"):
        FairGrad(0.01).weights(J @ J.T)

"""UPGrad and DualProj: closed forms, the numbers of the paper, and what `reg` does."""

import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.testing import assert_close

from lightning_jd.aggregators import DualProj, Mean, UPGrad
from lightning_jd.linalg import dual_cone_residuals
from tests.helpers.matrices import EXAMPLES, MATRICES, jacobians

PAIR = MATRICES["conflicting_pair"]


def test_two_conflicting_rows_have_a_closed_form() -> None:
    g, h = PAIR
    expected = (g - (g @ h) / (h @ h) * h + h - (g @ h) / (g @ g) * g) / 2
    assert_close(UPGrad(reg=0)(PAIR), expected, rtol=1e-12, atol=0)


def test_the_numbers_of_the_paper_and_of_the_default_regularisation() -> None:
    exact = torch.tensor([0.2924, 1.9006, 1.9006], dtype=torch.float64)
    default = torch.tensor([0.2929, 1.9004, 1.9004], dtype=torch.float64)
    assert_close(UPGrad(reg=0)(PAIR), exact, rtol=0, atol=5e-5)
    assert_close(UPGrad()(PAIR), default, rtol=0, atol=5e-5)


def test_the_first_entry_of_the_example_is_a_fraction() -> None:
    # g = (-4, 1, 1), h = (6, 1, 1), g.h = -22, g.g = 18, h.h = 38: (22/38 6 - 4 - 22/18 4 + 6) / 2
    assert_close(float(UPGrad(reg=0)(PAIR)[0]), 50 / 171, rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", ["orthogonal_rows", "agreeing_rows"])
@pytest.mark.parametrize("cls", [UPGrad, DualProj])
@pytest.mark.parametrize("reg", [0.0, 1e-4])
def test_without_conflict_it_is_the_mean(
    cls: type[UPGrad | DualProj], name: str, reg: float
) -> None:
    J = MATRICES[name]
    assert_close(cls(reg=reg)(J), Mean()(J), rtol=1e-12, atol=0)


@pytest.mark.parametrize(("a", "expected"), [(2.0, [0.0, 2.0]), (0.6, [0.4, 0.6])])
def test_dualproj_on_the_example_of_the_paper(a: float, expected: list[float]) -> None:
    J = torch.tensor([[2.0, 0.0], [-2 * a, 2 * a]], dtype=torch.float64)
    assert_close(
        DualProj(reg=0)(J), torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12
    )


def test_a_preference_weights_the_projections() -> None:
    g, h = PAIR
    projected = torch.stack([g - (g @ h) / (h @ h) * h, h - (g @ h) / (g @ g) * g])
    preference = torch.tensor([0.3, 2.0], dtype=torch.float64)
    assert_close(UPGrad([0.3, 2.0], reg=0)(PAIR), preference @ projected, rtol=1e-12, atol=0)
    # h alone counts in the target 2 h + 0.3 g: only g is violated, and is projected away.
    target = preference @ PAIR
    expected = target - (target @ g) / (g @ g) * g
    assert_close(DualProj([0.3, 2.0], reg=0)(PAIR), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("reg", [0.0, 1e-4])
@EXAMPLES
@given(J=jacobians())
def test_the_weights_are_certified(reg: float, J: Tensor) -> None:
    G, m = J @ J.T, len(J)
    target = torch.full((m,), 1 / m, dtype=J.dtype)
    residuals = dual_cone_residuals(G, target, DualProj(reg=reg).weights(G), reg=reg)
    assert float(residuals.infeasibility) <= 1e-10
    assert float(residuals.violation) <= 1e-10
    assert float(residuals.slackness) <= 1e-10


@pytest.mark.parametrize("cls", [UPGrad, DualProj])
def test_a_small_gradient_has_no_veto_with_regularisation(cls: type[UPGrad | DualProj]) -> None:
    # The second objective has all but converged, and is opposed: exactly, nobody may move.
    J = torch.tensor([[1.0, 0.0], [-1e-9, 1e-12]], dtype=torch.float64)
    assert_close(cls()(J)[0], torch.tensor(0.5, dtype=J.dtype), rtol=1e-3, atol=0)
    assert float(cls(reg=0).weights(J @ J.T).max()) >= 1e8


@pytest.mark.parametrize("cls", [UPGrad, DualProj])
def test_the_solver_can_be_chosen(cls: type[UPGrad | DualProj]) -> None:
    J = MATRICES["strongly_conflicting"]
    assert_close(cls(solver="quadprog")(J), cls()(J), rtol=1e-6, atol=1e-9)

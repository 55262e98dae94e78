"""MGDA and CAGrad by their optimality conditions, and CAGrad against a general optimiser."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor
from torch.testing import assert_close

from lightning_jd.aggregators import IMTLG, MGDA, AlignedMTL, CAGrad, CappedMGDA, DualProj, Step
from lightning_jd.linalg import min_norm_residuals
from tests.helpers.matrices import EXAMPLES, MATRICES, jacobians, matrix, normal


@EXAMPLES
@given(J=jacobians())
def test_mgda_is_certified(J: Tensor) -> None:
    G = J @ J.T
    residuals = min_norm_residuals(G, MGDA().weights(G))
    assert max(map(float, residuals)) <= 1e-10


@EXAMPLES
@given(J=jacobians())
def test_mgda_improves_every_objective_by_at_least_its_squared_norm(J: Tensor) -> None:
    d = MGDA()(J)
    norms = J.norm(dim=1)
    assert bool((J @ d - d @ d >= -1e-7 * norms.maximum(d.norm()) * norms.min()).all())


@pytest.mark.parametrize(("a", "expected"), [(0.5, 0.5), (0.9, 0.9), (1.5, 1.0)])
def test_mgda_on_the_example_of_the_paper(a: float, expected: float) -> None:
    J = torch.tensor([[2.0, 0.0], [0.0, 2.0], [a, a]], dtype=torch.float64)
    assert_close(MGDA()(J), torch.full((2,), expected, dtype=J.dtype), rtol=1e-9, atol=0)


def capped_gap(G: Tensor, v: Tensor, cap: float) -> float:
    """By how much a vertex of the bounded simplex is nearer along Jᵀv, relative to the terms."""
    m, norms = len(G), G.diagonal().clamp(min=0).sqrt()
    shares = torch.zeros(m).double()
    for i in range(m):
        shares[i] = min(cap, 1 - float(shares.sum()))
    best = torch.zeros(m).double()
    best[(G @ v).argsort()] = shares
    size = float(v @ norms)
    return float(v @ G @ v - best @ G @ v) / max(size * (size + float(best @ norms)), 1e-300)


@EXAMPLES
@given(J=jacobians(), cap=st.sampled_from([0.3, 0.5, 0.9]))
def test_capped_mgda_is_certified(J: Tensor, cap: float) -> None:
    G, m = J @ J.T, len(J)
    v, bound = CappedMGDA(cap).weights(G), max(cap, 1 / m)
    assert bool((v >= -1e-12).all() & (v <= bound + 1e-12).all())
    assert_close(float(v.sum()), 1.0, rtol=1e-12, atol=0)
    assert capped_gap(G, v, bound) <= 1e-10


@pytest.mark.parametrize("cap", [0.21, 1 / 3, 0.5, 0.75])
@pytest.mark.parametrize("name", ["full_rank_5x9", "strongly_conflicting", "agreeing_rows"])
def test_capped_mgda_agrees_with_quadprog(name: str, cap: float) -> None:
    qpsolvers = pytest.importorskip("qpsolvers")
    G = MATRICES[name] @ MATRICES[name].T
    m = len(G)
    expected = qpsolvers.solve_qp(
        G.numpy(),
        np.zeros(m),
        A=np.ones((1, m)),
        b=np.ones(1),
        lb=np.zeros(m),
        ub=np.full(m, max(cap, 1 / m)),
        solver="quadprog",
    )
    found = CappedMGDA(cap).weights(G)
    assert_close(found, torch.from_numpy(expected), rtol=1e-7, atol=1e-9)


def test_capped_mgda_finds_rows_that_cancel_whatever_their_order() -> None:
    J = matrix([-1.0], [-1.0], [1.0])
    for order in ([0, 1, 2], [1, 2, 0], [2, 0, 1]):
        assert not CappedMGDA(0.5)(J[order]).any()


def test_capped_mgda_is_between_mgda_and_the_mean() -> None:
    J = MATRICES["strongly_conflicting"]
    assert_close(CappedMGDA(1.0)(J), MGDA()(J), rtol=1e-9, atol=0)
    assert_close(CappedMGDA(0.2)(J), J.mean(dim=0), rtol=1e-9, atol=1e-12)
    lengths = [float(CappedMGDA(cap)(J).norm()) for cap in (0.2, 0.3, 0.5, 1.0)]
    assert lengths[0] > lengths[1] > lengths[2] >= lengths[3] - 1e-12


@pytest.mark.parametrize("m", [60, 128])
def test_capped_mgda_of_many_rows_is_certified(m: int) -> None:
    for seed, n in ((1, 2 * m), (2, m // 3)):
        G = (lambda A: A @ A.T)(normal(seed, m, n) + 0.1)
        for cap in (1.5 / m, 0.1, 0.5):
            assert capped_gap(G, CappedMGDA(cap).weights(G), cap) <= 1e-10


def test_cagrad_on_the_example_of_the_paper() -> None:
    a, c = 3.0, 0.5  # c sqrt(1 + a²) + 1 < a²: only the first row limits
    J = torch.tensor([[2.0, 0.0], [0.0, 2 * a]], dtype=torch.float64)
    expected = torch.tensor([c * (1 + a**2) ** 0.5 + 1, a], dtype=J.dtype)
    assert_close(CAGrad(c)(J), expected, rtol=1e-9, atol=0)


def test_cagrad_at_a_stationary_point_takes_the_best_direction_nearest_to_the_mean() -> None:
    J = torch.tensor([[1.0, 0.0], [-1.2, 0.0], [0.0, 1.0]], dtype=torch.float64)
    expected = torch.tensor([0.0, 1 / 3], dtype=J.dtype)  # only upwards is nobody harmed
    assert_close(CAGrad(c=0.5)(J), expected, rtol=1e-9, atol=1e-9)
    assert_close(CAGrad(c=0.5)(J), DualProj(reg=0)(J), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "name", ["full_rank_5x9", "strongly_conflicting", "more_rows_than_columns"]
)
@pytest.mark.parametrize("c", [0.2, 0.8])
@pytest.mark.parametrize("preferred", [False, True])
def test_cagrad_agrees_with_a_general_optimiser_on_the_dual(
    name: str, c: float, preferred: bool
) -> None:
    J = MATRICES[name]
    m, G = len(J), (J @ J.T).numpy()
    u = np.arange(1.0, m + 1) / (m * (m + 1) / 2) if preferred else np.full(m, 1 / m)
    step = Step(tuple(map(str, range(m))))
    preference = {str(i): 3.0 * p for i, p in enumerate(u)} if preferred else None
    radius = c * np.sqrt(u @ G @ u)
    result = minimize(
        lambda w: u @ G @ w + radius * np.sqrt(w @ G @ w),
        u,
        jac=lambda w: G @ u + radius * G @ w / np.sqrt(w @ G @ w),
        method="SLSQP",
        bounds=[(0, 1)] * m,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    w = result.x
    expected = torch.from_numpy(u + radius / np.sqrt(w @ G @ w) * w) @ J
    found = CAGrad(c, preference).weigh(J @ J.T, step) @ J
    assert_close(found, expected, rtol=1e-4, atol=1e-4)  # what SLSQP reaches
    q = np.minimum(w, u)
    expected = torch.from_numpy(u + radius / np.sqrt(q @ G @ q) * q) @ J
    found = CAGrad(c, preference, clipped=True).weigh(J @ J.T, step) @ J
    assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_the_clipped_correction_of_cagrad_on_a_published_example() -> None:
    # A reproduction of the paper on RACO reports the coefficient 0.356145 of the first gradient.
    J = torch.tensor([[1.0, -4.0], [-1.0, 1.0]], dtype=torch.float64)
    p = torch.tensor([0.2, 0.8], dtype=torch.float64)
    y = CAGrad(0.5, p.tolist()).weights(J @ J.T) - p
    assert_close(float(y[0] / y.sum()), 0.356145, rtol=1e-5, atol=0)
    q = torch.stack([p[0], y[1] / y.sum()])  # the first share is clipped, the second is not
    mean, correction = p @ J, q @ J
    expected = mean + 0.5 * mean.norm() * correction / correction.norm()
    assert_close(CAGrad(0.5, p.tolist(), clipped=True)(J), expected, rtol=1e-9, atol=0)


def test_where_the_clipped_correction_vanishes_cagrad_is_the_mean() -> None:
    J = matrix([1.0, 0.0], [-1.0, 0.0], [0.0, 1.0])  # stationary: half of the first two
    preference = [0.25, 0.25, 0.5]
    d = CAGrad(0.5, preference, clipped=True)(J)
    assert_close(d, torch.tensor(preference).double() @ J, rtol=1e-9, atol=1e-12)


# --- IMTL-G and Aligned-MTL: their equations, the pseudo-inverse, and the decision about the rank


@pytest.mark.parametrize("name", ["full_rank_5x9", "conflicting_pair", "huge", "uneven_norms"])
def test_imtlg_projects_equally_on_independent_rows(name: str) -> None:
    J = MATRICES[name]
    projections = (J / J.norm(dim=1, keepdim=True)) @ IMTLG()(J)
    assert_close(projections, projections.mean().expand(len(J)), rtol=1e-9, atol=0)
    assert_close(float(IMTLG().weights(J @ J.T).sum()), 1.0, rtol=1e-9, atol=0)


def test_imtlg_on_the_examples_of_the_paper() -> None:
    J = MATRICES["paper_imtlg_conflict"]
    assert_close(IMTLG().weights(J @ J.T), matrix([-1.0, 1.0, 1.0])[0], rtol=1e-9, atol=0)
    a = 3.0
    J = matrix([a, 0.0], [0.0, 1.0])
    assert_close(IMTLG()(J), torch.full((2,), 1 / (1 / a + 1)).double(), rtol=1e-7, atol=0)


@pytest.mark.parametrize("factor", [1e-10, 1.0, 1e10])
def test_the_rank_for_imtlg_does_not_depend_on_the_norms(factor: float) -> None:
    # Twice the same direction at very different norms, and an independent one: rank two.
    J = matrix([1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]) * torch.tensor(
        [[1.0], [1.0], [factor]]
    )
    # With F = [[1, 0], [0, 1], [0, f]] and norms F (1, 1): v is the shortest with Fᵀ v = (1, 1).
    v = torch.tensor([1.0, 1 / (1 + factor**2), factor / (1 + factor**2)], dtype=J.dtype)
    assert_close(IMTLG().weights(J @ J.T), v / v.sum(), rtol=1e-6, atol=1e-12)


def test_alignedmtl_of_orthogonal_rows_makes_them_as_long_as_the_shortest() -> None:
    J = MATRICES["orthogonal_rows"]  # norms 3, 1, 1/2
    expected = J / J.norm(dim=1, keepdim=True) * 0.5
    assert_close(AlignedMTL()(J), expected.mean(dim=0), rtol=1e-12, atol=0)


def test_alignedmtl_on_the_examples_of_the_paper() -> None:
    J = MATRICES["paper_alignedmtl_conflict"]
    expected = matrix([3 - 3**0.5, 1 - 3**0.5])[0] / 8
    assert_close(J @ AlignedMTL()(J), expected, rtol=1e-9, atol=0)
    for a, length in ((0.9, 0.45), (4.0, 0.5)):
        d = AlignedMTL()(matrix([1.0, 0.0], [0.0, a]))
        assert_close(d, torch.full((2,), length).double(), rtol=1e-7, atol=0)


@EXAMPLES
@given(J=jacobians())
def test_alignedmtl_makes_all_singular_values_equal(J: Tensor) -> None:
    U, S, Vh = torch.linalg.svd(J, full_matrices=False)
    nonzero = 1e-6 * S.max() < S
    if bool((S[~nonzero] > 1e-10 * S.max()).any()) or not bool(nonzero.any()):
        return  # next to the tolerance either answer is right
    U, S, Vh = U[:, nonzero], S[nonzero], Vh[nonzero]
    expected = S.min() * (U.mean(dim=0) @ Vh)
    assert (AlignedMTL()(J) - expected).norm() <= 1e-4 * S.min()

"""MGDA and CAGrad: closed forms, certificates, and what degenerate inputs are defined to give."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from lightning_jd.errors import ShapeError
from lightning_jd.linalg import (
    cagrad_weights,
    dual_cone_weights,
    halfspace_weights,
    min_norm_residuals,
    min_norm_weights,
    simplex_projection,
)
from tests.helpers.gramians import FAMILIES, RESIDUAL, gramians

EXAMPLES = settings(max_examples=150, deadline=None, derandomize=True)
DTYPES = [torch.float64, torch.float32]


def mean(m: int) -> Tensor:
    return torch.full((m,), 1 / m, dtype=torch.float64)


# The least norm


def certify(G: Tensor, residual: float = 0.0) -> None:
    residuals = min_norm_residuals(G, min_norm_weights(G))
    assert max(map(float, residuals)) <= max(residual, RESIDUAL[G.dtype]), residuals


@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_least_norm_of_every_family(family: str, dtype: torch.dtype) -> None:
    for m in (1, 2, 3, 17, 40):
        certify(FAMILIES[family](m, 1).to(dtype))


@EXAMPLES
@given(G=gramians(), dtype=st.sampled_from(DTYPES))
def test_the_least_norm_of_every_gramian(G: Tensor, dtype: torch.dtype) -> None:
    # Rows 1e8 times longer than others that cancel exactly: that is below the rounding of G.
    certify(G.to(dtype), residual=1e-8)


def test_the_least_norm_of_two_rows_has_a_closed_form() -> None:
    for a, b, c in [(1.0, 4.0, 0.5), (1.0, 4.0, -1.5), (1.0, 4.0, 1.9), (9.0, 1.0, 2.0)]:
        G = torch.tensor([[a, c], [c, b]], dtype=torch.float64)
        first = min(1.0, max(0.0, (b - c) / (a + b - 2 * c)))
        expected = torch.tensor([first, 1 - first], dtype=torch.float64)
        assert_close(min_norm_weights(G), expected, rtol=1e-12, atol=1e-14)


def test_orthogonal_rows_count_by_the_inverse_of_their_squares() -> None:
    squares = torch.logspace(-8, 8, 9, dtype=torch.float64)
    expected = (1 / squares) / (1 / squares).sum()
    assert_close(min_norm_weights(squares.diag()), expected, rtol=1e-12, atol=0)


# The shortest vector in half-spaces


@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
@pytest.mark.parametrize("m", [1, 4, 30])
def test_the_shortest_vector_in_half_spaces_agrees_with_quadprog(
    m: int, dtype: torch.dtype
) -> None:
    qpsolvers = pytest.importorskip("qpsolvers")
    J = torch.randn(m, 2 * m, generator=torch.Generator().manual_seed(m)).double()
    J *= torch.logspace(-1, 1, m)[:, None]
    b = torch.linspace(-1, 2, m, dtype=torch.float64) * J.norm(dim=1)
    expected = qpsolvers.solve_qp(
        torch.eye(2 * m).double().numpy(),
        torch.zeros(2 * m).double().numpy(),
        -J.numpy(),
        -b.numpy(),
        solver="quadprog",
    )
    v = halfspace_weights((J @ J.T).to(dtype), b)
    assert v.dtype == dtype
    precision = 1e-9 if dtype == torch.float64 else 1e-4
    assert_close(v.double() @ J, torch.from_numpy(expected), rtol=precision, atol=precision)


def test_half_spaces_with_dependent_normals_have_a_shortest_vector() -> None:
    J = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    b = torch.tensor([1.0, 3.0, 0.0], dtype=torch.float64)
    v = halfspace_weights(J @ J.T, b)
    assert_close(v @ J, torch.tensor([1.5, 0.0], dtype=torch.float64))
    assert v[2] == 0


def test_bounds_and_preferences_must_fit_the_gramian() -> None:
    with pytest.raises(ShapeError, match=r"`bounds` must have one entry per row \(2\), got shape"):
        halfspace_weights(torch.eye(2), torch.ones(3))
    with pytest.raises(ShapeError, match=r"`preference` must have one entry per objective \(2\)"):
        cagrad_weights(torch.eye(2), 0.5, torch.ones(3))


# CAGrad


def duality_gap(G: Tensor, weights: Tensor, c: float) -> float:
    """By how much a better direction could exist, relative to the norms (weak duality)."""
    m, G, weights = len(G), G.to(torch.float64), weights.to(torch.float64)
    y = (weights - mean(m)).clamp(min=0)
    v = y / y.sum() if y.sum() > 0 else mean(m) * 0
    radius = c * (mean(m) @ G @ mean(m)).clamp(min=0).sqrt()
    upper = v @ G @ mean(m) + radius * (v @ G @ v).clamp(min=0).sqrt()
    worst = (G @ weights).min()
    norms = G.diagonal().clamp(min=0).sqrt()
    return float((upper - worst) / (norms.max() * (norms * weights).max()))


@pytest.mark.parametrize("c", [0.01, 0.4, 1.0, 5.0])
@pytest.mark.parametrize(
    "family", ["gaussian", "conflicting", "low_rank", "duplicate_rows", "cnn_like"]
)
def test_no_direction_in_the_ball_is_better(family: str, c: float) -> None:
    for m in (2, 3, 17, 40):
        G = FAMILIES[family](m, 1)
        weights = cagrad_weights(G, c)
        y = weights - mean(m)
        radius = c * (mean(m) @ G @ mean(m)).sqrt()
        assert (y @ G @ y).sqrt() <= radius * (1 + 1e-9)
        assert y.min() >= -1e-12
        assert duality_gap(G, weights, c) <= 1e-9


@pytest.mark.parametrize("family", ["gaussian", "conflicting", "low_rank", "cnn_like", "half_rank"])
def test_from_c_1_on_nobody_conflicts(family: str) -> None:
    G = FAMILIES[family](15, 2)
    weights = cagrad_weights(G, 1.0)
    norms = G.diagonal().sqrt()
    assert (G @ weights / norms).min() >= -1e-9 * (weights * norms).max()


@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
def test_stationary_rows_give_the_projection_of_the_mean(dtype: torch.dtype) -> None:
    J = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 1.0]], dtype=dtype)
    G = J @ J.T
    for c in (1.0, 2.0, 100.0):  # large enough a ball to reach the dual cone
        expected = dual_cone_weights(G, mean(3), reg=0.0)
        assert_close(J.T @ cagrad_weights(G, c), J.T @ expected, rtol=1e-5, atol=1e-6)
    small = J.T @ cagrad_weights(G, 0.1)  # too small a ball: the sphere is reached
    g0 = J.mean(dim=0)
    assert_close((small - g0).norm(), 0.1 * g0.norm(), rtol=1e-5, atol=0)


@EXAMPLES
@given(G=gramians(8), c=st.sampled_from([0.1, 0.9, 1.0, 3.0]), dtype=st.sampled_from(DTYPES))
def test_cagrad_is_finite_and_stays_in_its_ball(G: Tensor, c: float, dtype: torch.dtype) -> None:
    G = G.to(dtype)
    weights = cagrad_weights(G, c)
    assert weights.isfinite().all()
    G, y = G.to(torch.float64), weights.to(torch.float64) - mean(len(G))
    norms = G.diagonal().sqrt()
    noise = math.sqrt(RESIDUAL[dtype]) * float((norms * weights.abs()).sum())
    radius = c * (mean(len(G)) @ G @ mean(len(G))).clamp(min=0).sqrt()
    assert (y @ G @ y).clamp(min=0).sqrt() <= radius * (1 + 1e-6) + noise


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e10, 1e21])
def test_a_projection_onto_the_simplex_is_on_it_at_any_scale(scale: float) -> None:
    projected = simplex_projection(scale * torch.tensor([3.0, -1.0, 2.0, 3.0], dtype=torch.float64))
    assert projected.sum() == pytest.approx(1.0)
    assert bool((projected >= 0).all())

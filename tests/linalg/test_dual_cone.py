"""Projection onto the dual cone: closed forms, certificates on every family, oracles."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from lightning_jd.linalg import (
    cagrad_weights,
    dual_cone_residuals,
    dual_cone_weights,
    min_norm_residuals,
    min_norm_weights,
    upgrad_weights,
)
from tests.helpers.gramians import FAMILIES, RESIDUAL, gramians

REGS = [0.0, 1e-12, 1e-4, 1.0]
WELL_CONDITIONED = ["gaussian", "conflicting", "wild_norms", "cnn_like", "tiny", "huge"]
EXAMPLES = settings(max_examples=150, deadline=None, derandomize=True)


def eye(m: int) -> Tensor:
    return torch.eye(m, dtype=torch.float64)


def certify(G: Tensor, targets: Tensor, weights: Tensor, reg: float) -> None:
    """Fail unless ``weights`` are finite and solve the program to the accuracy of their dtype."""
    assert weights.isfinite().all()
    residuals = dual_cone_residuals(G, targets, weights, reg=reg)
    worst = {name: float(getattr(residuals, name).max()) for name in residuals._fields[:3]}
    assert max(worst.values()) <= RESIDUAL[G.dtype], worst


# Closed forms


def test_the_example_of_the_paper() -> None:
    J = torch.tensor([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]], dtype=torch.float64)
    # Each row minus its component along the other: (13, 19, 19)/… by hand.
    g, h = J
    expected = (g - (g @ h) / (h @ h) * h + h - (g @ h) / (g @ g) * g) / 2
    direction = J.T @ upgrad_weights(J @ J.T, reg=0.0)
    assert_close(direction, expected, rtol=1e-9, atol=0)
    assert_close(direction, direction.new_tensor([0.2924, 1.9006, 1.9006]), rtol=0, atol=5e-5)
    regularised = J.T @ upgrad_weights(J @ J.T)
    assert_close(regularised[0], regularised.new_tensor(0.2929), rtol=0, atol=5e-5)


@pytest.mark.parametrize("correlation", [-1.0, -0.9, 0.0, 0.5])
@pytest.mark.parametrize("solver", ["auto", "batched", "quadprog"])
def test_two_objectives_have_a_closed_form(correlation: float, solver: str) -> None:
    G = torch.tensor([[4.0, 6 * correlation], [6 * correlation, 9.0]], dtype=torch.float64)
    p = torch.tensor([0.25, 2.0], dtype=torch.float64)
    H = G / G.trace() + 1e-4 * eye(2)
    conflict = (-H[0, 1]).clamp(min=0)
    expected = p + p.flip(0) * conflict / H.diagonal()
    weights = upgrad_weights(G, p, solver=solver)
    assert_close(weights, expected, rtol=1e-12, atol=0)
    assert_close(
        dual_cone_weights(G, p.diag(), solver=solver).sum(dim=0), expected, rtol=1e-12, atol=0
    )


@pytest.mark.parametrize("m", [3, 8, 40, 120])
@pytest.mark.parametrize("solver", ["auto", "batched"])
def test_rows_that_do_not_conflict_keep_their_targets_exactly(m: int, solver: str) -> None:
    orthogonal = torch.logspace(-8, 8, m, dtype=torch.float64).diag()
    agreeing = torch.rand(m, m, dtype=torch.float64)
    for G in (orthogonal, agreeing @ agreeing.T):
        for reg in REGS:
            assert_close(
                dual_cone_weights(G, eye(m), reg=reg, solver=solver), eye(m), rtol=0, atol=0
            )


# Certificates


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("reg", [0.0, 1e-4])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_solved_exactly(family: str, reg: float, dtype: torch.dtype) -> None:
    for m in (2, 3, 8, 33):
        G = FAMILIES[family](m, 1).to(dtype)
        for solver in ("auto", "batched"):
            certify(G, eye(m), dual_cone_weights(G, eye(m), reg=reg, solver=solver), reg)


@pytest.mark.parametrize("reg", [0.0, 1e-4])
@pytest.mark.parametrize(
    "family", ["gaussian", "conflicting", "low_rank", "duplicate_rows", "cnn_like"]
)
def test_many_objectives_are_solved_exactly(family: str, reg: float) -> None:
    G = FAMILIES[family](130, 0)
    certify(G, eye(130), dual_cone_weights(G, eye(130), reg=reg), reg)


@EXAMPLES
@given(
    G=gramians(), reg=st.sampled_from(REGS), dtype=st.sampled_from([torch.float64, torch.float32])
)
def test_every_gramian_is_solved_exactly(G: Tensor, reg: float, dtype: torch.dtype) -> None:
    G = G.to(dtype)
    m = len(G)
    certify(G, eye(m), dual_cone_weights(G, eye(m), reg=reg), reg)


# Oracles


@pytest.mark.parametrize("family", WELL_CONDITIONED)
def test_quadprog_agrees_without_regularisation(family: str) -> None:
    qpsolvers = pytest.importorskip("qpsolvers")
    G = FAMILIES[family](12, 0)
    d = G.diagonal().sqrt()
    C = (G / d / d[:, None]).numpy()  # quadprog itself cannot take norms from 1e-8 to 1e8
    rows = [qpsolvers.solve_qp(C, np.zeros(12), lb=u, solver="quadprog") for u in np.eye(12)]
    weights = dual_cone_weights(G, eye(12), reg=0.0)
    scaled = weights * d / d[:, None]
    assert_close(scaled, torch.from_numpy(np.stack(rows)), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    "family", ["gaussian", "conflicting", "low_rank", "duplicate_rows", "cnn_like"]
)
def test_torchjd_agrees_at_the_same_regularisation(family: str) -> None:
    torchjd = pytest.importorskip("torchjd")
    G = FAMILIES[family](20, 0)
    expected = torchjd.aggregation.UPGradWeighting()(G)
    assert_close(upgrad_weights(G, reg=1e-4), expected, rtol=1e-7, atol=0)
    expected = torchjd.aggregation.DualProjWeighting()(G)
    mean = torch.full((20,), 1 / 20, dtype=torch.float64)
    assert_close(dual_cone_weights(G, mean, reg=1e-4), expected, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("reg", [0.0, 1e-4])
@pytest.mark.parametrize("family", FAMILIES)
def test_all_paths_give_the_same_weights_even_where_they_are_not_unique(
    family: str, reg: float
) -> None:
    for m in (3, 20):
        G = FAMILIES[family](m, 2)
        d = (G.diagonal() / G.diagonal().max().clamp(min=1e-300)).sqrt()
        mean = torch.full((m,), 1 / m, dtype=torch.float64)
        weights = upgrad_weights(G, reg=reg) * d
        size = float(weights.abs().max())
        # Directions that the Gramian does not see are resolved up to the proximal term, no better.
        same = {"rtol": 0, "atol": 1e-6 * max(size, 1e-300)}
        assert_close(upgrad_weights(G, reg=reg, solver="batched") * d, weights, **same)
        assert_close(dual_cone_weights(G, mean.diag(), reg=reg).sum(dim=0) * d, weights, **same)


# Invariances and types


@pytest.mark.parametrize("family", ["gaussian", "low_rank", "stationary"])
def test_the_scale_of_the_gramian_does_not_matter(family: str) -> None:
    G = FAMILIES[family](9, 0)
    for scale in (1e-280, 1e-30, 1e30, 1e300):
        for reg in (0.0, 1e-4):
            weights = upgrad_weights(G * scale, reg=reg)
            assert_close(weights, upgrad_weights(G, reg=reg), rtol=1e-6, atol=0)


@pytest.mark.parametrize("m", [2, 9, 120])
def test_a_preference_scales_each_projection(m: int) -> None:
    G = FAMILIES["conflicting"](m, 0)
    p = torch.linspace(0, 2, m, dtype=torch.float64)
    expected = p @ dual_cone_weights(G, eye(m))
    assert_close(upgrad_weights(G, p), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("m", [1, 2, 6, 20, 120])
def test_shape_and_dtype_of_the_answer(m: int, dtype: torch.dtype) -> None:
    G = (FAMILIES["gaussian"](m, 0) / m).to(dtype).requires_grad_()
    for targets in (torch.ones(m), torch.ones(3, m), torch.ones(40, m, dtype=torch.float64)):
        for solver in ("auto", "batched"):
            weights = dual_cone_weights(G, targets, solver=solver)
            assert weights.shape == targets.shape
            assert weights.dtype == dtype
            assert not weights.requires_grad
    assert upgrad_weights(G).dtype == dtype
    assert upgrad_weights(G).shape == (m,)
    assert upgrad_weights(G, torch.ones(m)).dtype == dtype


@pytest.mark.parametrize("m", [3, 20])
def test_weights_stay_finite_where_float32_would_overflow(m: int) -> None:
    J = torch.randn(m, 2 * m, dtype=torch.float64)
    J[0] *= 1e-22  # its square is not even a float32: a weight of about 1e40 would be right
    G = (J - J.mean(dim=0)) @ (J - J.mean(dim=0)).T
    G[0], G[:, 0] = G[0] * 1e-20, G[:, 0] * 1e-20
    G = G.to(torch.float32)
    assert G[0, 0] > 0
    for solver in ("auto", "batched"):
        assert upgrad_weights(G, reg=0.0, solver=solver).isfinite().all()


@pytest.mark.parametrize("reg", [0.0, 1e-4])
def test_a_gramian_that_is_indefinite_by_rounding_is_no_problem(reg: float) -> None:
    noise = torch.randn(30, 30, dtype=torch.float64)
    for size in (1e-15, 1e-12, 1e-7, 1e-3):
        G = FAMILIES["stationary"](30, 0)
        G = G + size * G.trace() / 30 * (noise + noise.T)
        for solver in ("auto", "batched"):
            weights = upgrad_weights(G, reg=reg, solver=solver)
            assert weights.isfinite().all()
            assert weights.max() <= 10 / size  # no more than the noise allows


def test_a_squared_norm_that_underflows_counts_as_no_gradient() -> None:
    J = torch.randn(5, 9, dtype=torch.float64)
    J[3] = -1e-20 * J[0]
    G = (J @ J.T).to(torch.float32)
    assert 0 < G[3, 3] < torch.finfo(torch.float32).tiny  # few digits are left of it
    for solver in ("auto", "batched"):
        weights = dual_cone_weights(G, eye(5), reg=0.0, solver=solver)
        assert_close(weights[:, 3], eye(5)[:, 3].to(G), rtol=0, atol=0)
        certify(G, eye(5), weights, 0.0)
    weights = dual_cone_weights(J @ J.T, eye(5), reg=0.0)  # in float64 it counts like any other
    certify(J @ J.T, eye(5), weights, 0.0)
    assert weights[0, 3] > 1e18


# --- Gramians that real training met: the hardest of several thousand steps, kept as they were


with np.load(Path(__file__).parent / "data" / "gramians_of_training.npz") as archive:
    GRAMIANS = {name: torch.from_numpy(archive[name]) for name in archive.files}


@pytest.fixture(params=GRAMIANS.values(), ids=GRAMIANS)
def gramian(request: pytest.FixtureRequest) -> Tensor:
    G: Tensor = request.param
    return G


@pytest.mark.parametrize("reg", [0.0, 1e-8, 1e-4])
@pytest.mark.parametrize("solver", ["auto", "batched"])
def test_the_dual_cone(gramian: Tensor, reg: float, solver: str) -> None:
    targets = torch.eye(len(gramian))
    weights = dual_cone_weights(gramian, targets, reg=reg, solver=solver)
    assert weights.isfinite().all()
    assert upgrad_weights(gramian, reg=reg, solver=solver).isfinite().all()
    residuals = dual_cone_residuals(gramian, targets, weights, reg=reg)
    assert max(float(r.max()) for r in residuals[:3]) <= RESIDUAL[torch.float32]


def test_the_least_norm(gramian: Tensor) -> None:
    residuals = min_norm_residuals(gramian, min_norm_weights(gramian))
    assert max(map(float, residuals)) <= RESIDUAL[torch.float32]


@pytest.mark.parametrize("c", [0.4, 1.0])
def test_cagrad(gramian: Tensor, c: float) -> None:
    weights = cagrad_weights(gramian, c)
    assert weights.isfinite().all()
    assert weights.min() >= 0

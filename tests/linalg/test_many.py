"""Many objectives: matrix products do nearly all the work, and what they leave is still solved."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_jd.linalg import (
    _host,
    _products,
    _stages,
    dual_cone_residuals,
    dual_cone_solution,
    upgrad_solution,
    upgrad_weights,
)
from lightning_jd.linalg._scaling import unit_diagonal
from tests.helpers.gramians import FAMILIES

M = 200  # above every threshold
FLOAT64, FLOAT32 = 1e-12, 1e-6


def classes(m: int, seed: int = 0) -> Tensor:
    """Ten classes of gradients that resemble each other: nine large eigenvalues, a small bulk."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(10, 4 * m, generator=generator, dtype=torch.float64)
    centres -= centres.mean(dim=0)
    noise = torch.randn(m, 4 * m, generator=generator, dtype=torch.float64)
    J = 2 * centres[torch.arange(m) % 10] + noise
    return J @ J.T


def unit(family: str, m: int = M) -> Tensor:
    G = classes(m) if family == "classes" else FAMILIES[family](m, 0)
    return unit_diagonal(G, 1e-4).C


# The answer


def reached(G: Tensor, targets: Tensor, weights: Tensor, reg: float) -> float:
    return max(float(r.max()) for r in dual_cone_residuals(G, targets, weights, reg=reg)[:3])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize(
    "family", ["classes", "gaussian", "conflicting", "low_rank", "duplicate_rows", "zero_rows"]
)
def test_the_residual_is_what_it_says(family: str, scale: float, dtype: torch.dtype) -> None:
    G = classes(M) if family == "classes" else FAMILIES[family](M, 0)
    G = (scale * scale * G).to(dtype)
    eye = torch.eye(M, dtype=torch.float64)
    weights, residual = dual_cone_solution(G, eye)
    tolerance = FLOAT64 if dtype == torch.float64 else FLOAT32
    assert residual <= tolerance
    assert reached(G, eye, weights, 1e-4) <= 4 * tolerance
    assert_close(
        upgrad_weights(G).double(), weights.double().mean(dim=0), rtol=10 * tolerance, atol=1e-12
    )


def test_the_exact_answer_is_one_argument_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        _products, "_systems_cost_less", lambda positive, bursts: False
    )  # systems would be exact
    G = classes(M).to(torch.float32)
    exact = upgrad_solution(G, tolerance=0)
    assert exact.residual <= FLOAT64
    assert upgrad_solution(G).residual > FLOAT64
    # A residual of 7e-7 moves these weights by up to 1.4e-5, over a few seeds.
    assert_close(upgrad_weights(G), exact.weights, rtol=2e-5, atol=0)
    assert_close(exact.weights, upgrad_weights(G.double()).float(), rtol=1e-6, atol=0)


def test_the_answer_is_the_same_every_time() -> None:
    G = classes(M).to(torch.float32)
    before = torch.get_rng_state()
    first = upgrad_weights(G)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(7)
    assert torch.equal(upgrad_weights(G), first)


# The stages


@pytest.mark.parametrize(
    ("name", "value"), [("BURSTS", 0), ("BURSTS", 1), ("HOPELESS", -1.0), ("EXTRAPOLATIONS", 0)]
)
def test_what_products_leave_is_pivoted(
    name: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    C = unit("classes").numpy()
    monkeypatch.setattr(_products, name, value)
    for tolerance in (FLOAT32, FLOAT64):
        Z, residual = _host.solve(C, C, 0.0, well_conditioned=True, tolerance=tolerance)
        assert residual <= tolerance
        matrix = torch.from_numpy(C)
        true = _stages.natural_residual(matrix, matrix, torch.from_numpy(Z).double())
        assert true.max() <= 2 * tolerance

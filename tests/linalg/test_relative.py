"""Regularisation relative to each row, or to the rows of the same block, instead of the trace."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_jd.errors import ArgumentError, UnknownNameError
from lightning_jd.linalg import (
    RelativeTo,
    dual_cone_residuals,
    dual_cone_weights,
    upgrad_solution,
    upgrad_weights,
)
from lightning_jd.linalg._scaling import FLOOR
from tests.helpers.gramians import FAMILIES, RESIDUAL

REG = 1e-4
UNEVEN = ["gaussian", "conflicting", "low_rank", "stationary", "duplicate_rows", "opposite_rows"]


def eye(m: int) -> Tensor:
    return torch.eye(m, dtype=torch.float64)


def uneven(family: str, m: int, decades: float = 8.0) -> Tensor:
    """A Gramian whose rows have norms that span so many decades, in no order."""
    order = torch.randperm(m, generator=torch.Generator().manual_seed(m))
    c = torch.logspace(-decades / 2, decades / 2, m, dtype=torch.float64)[order]
    return c * FAMILIES[family](m, 1) * c[:, None]


def scales(m: int) -> list[RelativeTo]:
    return ["row", tuple(i % 2 for i in range(m)) if m > 1 else (0,)]


def certify(G: Tensor, weights: Tensor, relative_to: RelativeTo) -> None:
    assert weights.isfinite().all()
    residuals = dual_cone_residuals(G, eye(len(G)), weights, reg=REG, relative_to=relative_to)
    worst = {name: float(getattr(residuals, name).max()) for name in residuals._fields[:3]}
    assert max(worst.values()) <= RESIDUAL[G.dtype], worst


@pytest.mark.parametrize("solver", ["auto", "batched", "quadprog"])
@pytest.mark.parametrize("ratio", [1.0, 1e3])
def test_two_objectives_have_a_closed_form(ratio: float, solver: str) -> None:
    G = torch.tensor([[4.0, -3 * ratio], [-3 * ratio, 9.0 * ratio**2]], dtype=torch.float64)
    H = G + REG * G.diagonal().diag()
    expected = 0.5 - 0.5 * H[0, 1] / H.diagonal()
    found = upgrad_weights(G, reg=REG, relative_to="row", solver=solver)
    assert_close(found, expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_solved_exactly(family: str, dtype: torch.dtype) -> None:
    for m in (2, 3, 8, 33):
        G = FAMILIES[family](m, 1).to(dtype)
        for relative_to in scales(m):
            for solver in ("auto", "batched"):
                arguments = {"reg": REG, "relative_to": relative_to, "solver": solver}
                certify(G, dual_cone_weights(G, eye(m), **arguments), relative_to)


@pytest.mark.parametrize("m", [5, 40, 130])
@pytest.mark.parametrize("family", UNEVEN)
def test_norms_over_eight_decades_are_solved_exactly(family: str, m: int) -> None:
    for dtype in (torch.float64, torch.float32):
        G = uneven(family, m).to(dtype)
        for relative_to in scales(m):
            weights = dual_cone_weights(G, eye(m), reg=REG, relative_to=relative_to)
            certify(G, weights, relative_to)
            found = upgrad_solution(G, reg=REG, relative_to=relative_to)
            assert found.residual <= (1e-12 if dtype == torch.float64 else 1e-6)


@pytest.mark.parametrize("family", UNEVEN)
def test_quadprog_solves_the_same_program(family: str) -> None:
    qpsolvers = pytest.importorskip("qpsolvers")
    G = uneven(family, 12, decades=5)
    H = G + REG * G.diagonal().diag()
    d = H.diagonal().sqrt()
    C = (H / d / d[:, None]).numpy()  # quadprog itself cannot take norms over five decades
    rows = [qpsolvers.solve_qp(C, np.zeros(12), lb=u, solver="quadprog") for u in np.eye(12)]
    found = dual_cone_weights(G, eye(12), reg=REG, relative_to="row") * d / d[:, None]
    assert_close(found, torch.from_numpy(np.stack(rows)), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("family", UNEVEN)
def test_linearity_under_scaling_is_exact(family: str) -> None:
    # Rows c_i g_i: the projection of row i is c_i times that of g_i, so its weights are c_i v / c.
    G = FAMILIES[family](9, 0)
    V = dual_cone_weights(G, eye(9), reg=REG, relative_to="row")
    c = torch.logspace(-2.5, 2.5, 9, dtype=torch.float64).flip(0)
    scaled = dual_cone_weights(c * G * c[:, None], eye(9), reg=REG, relative_to="row")
    assert_close(scaled, c[:, None] * V / c, rtol=1e-8, atol=1e-12)
    by_trace = dual_cone_weights(c * G * c[:, None], eye(9), reg=REG)
    assert not torch.allclose(by_trace, c[:, None] * V / c, rtol=1e-2)


def test_blocks_are_linear_in_the_scale_of_each_block() -> None:
    G, blocks = FAMILIES["conflicting"](8, 0), (0, 1) * 4
    V = dual_cone_weights(G, eye(8), reg=REG, relative_to=blocks)
    c = torch.tensor([1.0, 1e4], dtype=torch.float64).repeat(4)
    scaled = dual_cone_weights(c * G * c[:, None], eye(8), reg=REG, relative_to=blocks)
    assert_close(scaled, c[:, None] * V / c, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("ratio", [1e-2, 1e-4, 0.9e-5])
def test_above_the_floor_a_short_row_is_protected(ratio: float) -> None:
    J = torch.tensor([[1.0, 0.0], [-ratio / 2, ratio]], dtype=torch.float64)
    w = upgrad_weights(J @ J.T, reg=REG, relative_to="row")
    d = w @ J
    assert bool((J @ d >= -(REG + 1e-9) * J.square().sum(dim=1) * w).all())
    assert float(J[1] @ d / J[1].norm() / d.norm()) >= -1e-3
    by_trace = upgrad_weights(J @ J.T, reg=REG) @ J
    assert float(J[1] @ by_trace / J[1].norm() / by_trace.norm()) < -0.2


def test_below_the_floor_a_row_loses_its_veto() -> None:
    # The diagonal of H is at least FLOOR times the trace: rows shorter than 1e-6 count as noise.
    found = []
    for ratio in (1e-5, 1e-6, 1e-7, 1e-8):
        J = torch.tensor([[1.0, 0.0], [-ratio, 0.0]], dtype=torch.float64)
        d = upgrad_weights(J @ J.T, reg=REG, relative_to="row") @ J
        found.append(float(2 * d[0]))  # 0 with a veto, 1 without
    assert found[0] <= 2 * REG
    assert 0 < found[1] < 0.5
    assert found[2] == pytest.approx(0.99, abs=1e-3)
    assert found[3] == pytest.approx(1, abs=1e-3)
    assert FLOOR == 1e-12


def test_a_wrong_scale_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="`relative_to` must be one of 'row', 'trace'"):
        upgrad_weights(eye(3), relative_to="rows")  # type: ignore[arg-type]
    for wrong in ((0, 1), (0, 1, 3), (0, 1, -1)):
        with pytest.raises(ArgumentError, match=r"one entry per row \(3\), from 0 to 2"):
            upgrad_weights(eye(3), relative_to=wrong)

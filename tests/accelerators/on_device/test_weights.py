"""Weights from a Gramian on a device: they agree with those of the host, and what they cost it."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from examples.lab.bench._runs import run_early, run_late, run_start
from lightning_jd.aggregators import MGDA, CAGrad, DualProj, GramianAggregator, UPGrad
from lightning_jd.engines.tape.contributions import products
from lightning_jd.errors import NonFiniteError
from lightning_jd.linalg import _device, dual_cone_solution, upgrad_solution
from tests.helpers.gramians import FAMILIES
from tests.pretended import DEVICE, host, operations, synchronisations

WELL_CONDITIONED = ["gaussian", "conflicting", "low_rank", "duplicate_rows", "cnn_like"]
RUNS = {"run_start": run_start, "run_early": run_early, "run_late": run_late}


def gramian(family: str, m: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return FAMILIES[family](m, 0).to(dtype)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("m", [1, 2, 40, 70])
def test_device_and_host_agree(family: str, m: int) -> None:
    G = gramian(family, m, torch.float64)
    for reg in (0.0, 1e-4):
        found = upgrad_solution(G.to(DEVICE), reg=reg)
        assert found.weights.device == DEVICE
        expected = upgrad_solution(G, reg=reg)
        assert_close(host(found.weights), expected.weights, rtol=1e-9, atol=1e-9)
        assert found.residual <= max(1e-12, expected.residual)


@pytest.mark.parametrize("m", [2, 64, 70])
@pytest.mark.parametrize(
    "aggregator",
    [UPGrad(), UPGrad(reg=0), DualProj(), MGDA(), CAGrad()],
    ids=["upgrad", "upgrad, reg 0", "dualproj", "mgda", "cagrad"],
)
def test_the_host_waits_once(aggregator: GramianAggregator, m: int) -> None:
    G = gramian("gaussian", m).to(DEVICE)
    with synchronisations() as found:
        aggregator.weights(G)
    assert len(found) == 1, "; ".join(map(str, found))


def double_products(G: Tensor, **options: float) -> float:
    """Products of two matrices of the size of G, in float64, that the solution asks for."""
    with operations() as found:
        solution = upgrad_solution(G.to(DEVICE), **options)
    assert solution.residual <= (1e-12 if options or G.dtype == torch.float64 else 5e-7)
    return sum(each.flops for each in found if each.dtype == "float64") / (2 * len(G) ** 3)


@pytest.mark.parametrize("family", ["gaussian", "cnn_like", *RUNS])
def test_float64_is_used_where_float32_would_not_do(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    G = RUNS[family](128) if family in RUNS else gramian(family, 128)
    assert double_products(G) < 1.1  # the residual
    assert double_products(G, tolerance=0.0) > 10
    assert double_products(G.double()) > 10
    # Then products of float32 have three digits.
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert double_products(G) > 10


def test_what_the_device_leaves_the_host_solves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_device, "NEWTON", 0)
    G = gramian("conflicting", 70, torch.float64)
    on_device = G.to(DEVICE)
    with synchronisations() as found:
        weights, residual = upgrad_solution(on_device)
    assert len(found) == 2, "; ".join(map(str, found))  # the residual, and the copy
    assert residual <= 1e-12
    assert_close(host(weights), upgrad_solution(G).weights, rtol=0, atol=0)


@pytest.mark.parametrize("m", [5, 70])
def test_rows_that_are_not_finite_are_named(m: int) -> None:
    G = gramian("gaussian", m)
    G[3], G[:, 3] = torch.nan, torch.nan
    with pytest.raises(NonFiniteError, match=r"row\(s\) 3 of"):
        upgrad_solution(G.to(DEVICE))
    with pytest.raises(NonFiniteError, match="targets"):
        dual_cone_solution(
            gramian("gaussian", m).to(DEVICE), torch.full((20, m), torch.nan).to(DEVICE)
        )


@pytest.mark.parametrize("columns", [1 << 14, 100_000, 1 << 17])
def test_few_long_rows_are_multiplied_in_few_kernels(columns: int) -> None:
    rows = torch.randn(5, columns)
    expected = rows.double() @ rows.double().T
    with operations() as found:
        G = products(rows.to(DEVICE))
    assert_close(host(G).double(), expected, rtol=1e-5, atol=1e-5 * columns)
    assert len(found) <= 6, [each.name for each in found]

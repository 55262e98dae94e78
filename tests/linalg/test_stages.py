"""Each stage hands over to a more robust one: provoked on purpose, one failure after the other."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_jd.linalg import (
    _arrays,
    _host,
    _single,
    _stages,
    dual_cone_weights,
)
from lightning_jd.linalg._scaling import unit_diagonal
from tests.helpers.gramians import FAMILIES

M = 20


@pytest.fixture(params=["gaussian", "conflicting", "low_rank", "stationary", "half_rank"])
def unit(request: pytest.FixtureRequest) -> Tensor:
    return unit_diagonal(FAMILIES[request.param](M, 0), 0.0).C


def is_solved(C: Tensor, Z: Tensor) -> bool:
    return bool((_stages.natural_residual(C, C, Z) <= 1e-11).all())


def gives_up(C: Tensor, Q: Tensor, positive: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
    return torch.zeros_like(Q), torch.arange(len(Q))


def test_the_proximal_stage_repairs_a_pivot_that_fails(
    unit: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    pivots = iter([gives_up])
    original = _stages.pivot
    monkeypatch.setattr(
        _stages, "pivot", lambda *args, rounds: next(pivots, original)(*args, rounds=rounds)
    )
    assert is_solved(unit, _stages.solve(unit, unit, 0.0))


def test_if_every_stage_fails_the_best_answer_is_returned(
    unit: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_stages, "pivot", gives_up)
    monkeypatch.setattr(
        _stages, "interior_point", lambda C, Q, tolerance: torch.full_like(Q, torch.nan)
    )
    Z = _stages.solve(unit, unit, 0.0)
    assert Z.isfinite().all()


@pytest.mark.parametrize("failing", ["_guess_positive", "_pivot"])
def test_what_numpy_leaves_is_finished_by_the_robust_stages(
    failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def singular(*_: Any, **__: Any) -> None:
        raise np.linalg.LinAlgError("Singular matrix")

    def useless(C: np.ndarray, Q: np.ndarray) -> np.ndarray:
        return np.zeros_like(Q, dtype=bool)

    for m in (6, M):  # systems that are masked, and systems that are gathered
        G, eye = FAMILIES["gaussian"](m, 0), torch.eye(m, dtype=torch.float64)
        expected = dual_cone_weights(G, eye)
        with monkeypatch.context() as patch:
            patch.setattr(_host, failing, useless if failing == "_guess_positive" else singular)
            patch.setattr(_host, "ROUNDS", 1)
            assert_close(dual_cone_weights(G, eye), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("exchange", [_single.exchange, lambda *_: None], ids=["single", "none"])
@pytest.mark.parametrize("guess", [np.zeros_like, np.ones_like])
def test_no_wrong_sign_is_overlooked_when_the_rounds_are_over(
    guess: Callable[..., np.ndarray],
    exchange: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_host, "_guess_positive", lambda C, Q: guess(Q, dtype=bool))
    monkeypatch.setattr(_host, "exchange", exchange)
    for rounds in (0, 1, 2):
        monkeypatch.setattr(_host, "ROUNDS", rounds)
        for m in (6, M):
            C = unit_diagonal(FAMILIES["gaussian"](m, 0), 0.0).C
            Z = torch.from_numpy(_host.solve(C.numpy(), C.numpy(), 0.0, well_conditioned=True).Z)
            assert is_solved(C, Z)


# The scale on which all this happens


@pytest.mark.parametrize("family", FAMILIES)
def test_numpy_and_torch_scale_alike(family: str) -> None:
    for reg in (0.0, 1e-4):
        for m in (1, 7):
            G = FAMILIES[family](m, 0)
            for ours, twin in zip(
                unit_diagonal(G, reg), _arrays.unit_diagonal(G.numpy(), reg, 0.0), strict=True
            ):
                assert_close(ours, torch.from_numpy(twin), rtol=1e-12, atol=1e-14)

"""Every message: what must hold, what was found, what to do."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_jd.errors import ArgumentError, NonFiniteError, ShapeError, UnknownNameError
from lightning_jd.linalg import (
    cagrad_weights,
    check_finite,
    dual_cone_residuals,
    dual_cone_weights,
    has_float64,
    in_float64,
    min_norm_residuals,
    min_norm_weights,
    placed,
    upgrad_weights,
)
from tests.helpers.gramians import FAMILIES

G = torch.eye(3)
FUNCTIONS: dict[str, Callable[[Tensor], object]] = {
    "upgrad_weights": upgrad_weights,
    "upgrad_weights batched": lambda gramian: upgrad_weights(gramian, solver="batched"),
    "dual_cone_weights": lambda gramian: dual_cone_weights(gramian, torch.ones(len(gramian))),
    "dual_cone_weights batched": lambda gramian: dual_cone_weights(
        gramian, torch.ones(len(gramian)), solver="batched"
    ),
    "min_norm_weights": min_norm_weights,
    "cagrad_weights": lambda gramian: cagrad_weights(gramian, 0.5),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_wrong_shapes(function: Callable[[Tensor], object]) -> None:
    with pytest.raises(ShapeError, match=r"`gramian` must have shape \(m, n\), got \(3,\)\."):
        function(torch.ones(3))
    with pytest.raises(ShapeError, match=r"`gramian` must be square, got shape \(3, 4\)\."):
        function(torch.ones(3, 4))
    with pytest.raises(ShapeError, match=r"at least one row, got shape \(0, 0\)\."):
        function(torch.ones(0, 0))
    with pytest.raises(ShapeError, match=r"floating-point, got torch\.int64\. Convert it first\."):
        function(torch.eye(3, dtype=torch.int64))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_non_finite_gramians(function: Callable[[Tensor], object], value: float) -> None:
    for m in (2, 5, 120):
        gramian = torch.eye(m)
        gramian[1], gramian[:, 1] = value, value
        with pytest.raises(
            NonFiniteError, match=rf"`gramian` must be finite, got .* row\(s\) 1 of {m}"
        ):
            function(gramian)


def test_targets_that_do_not_fit() -> None:
    for shape in [(), (2,), (3, 2), (1, 1, 3)]:
        with pytest.raises(
            ShapeError, match=r"`targets` must have shape \(k, 3\) or \(3,\), got \("
        ):
            dual_cone_weights(G, torch.ones(shape))


def test_a_preference_of_the_wrong_length() -> None:
    message = r"`preference` must have one entry per objective \(3\), got shape \(2,\)\."
    with pytest.raises(ShapeError, match=message):
        upgrad_weights(G, torch.ones(2))


@pytest.mark.parametrize("reg", [-1e-9, torch.nan, torch.inf])
def test_a_regularisation_out_of_range(reg: float) -> None:
    message = rf"`reg` must be at least 0 and finite, got {reg}\."
    with pytest.raises(ArgumentError, match=message):
        upgrad_weights(G, reg=reg)
    with pytest.raises(ArgumentError, match=message):
        dual_cone_weights(G, G, reg=reg)


def test_an_unknown_solver_lists_those_that_exist() -> None:
    message = (
        r"`solver` must be one of 'auto', 'batched'.*'quadprog'.*, got 'quadprg'\. Did you mean"
    )
    with pytest.raises(UnknownNameError, match=message):
        upgrad_weights(G, solver="quadprg")
    with pytest.raises(UnknownNameError, match=message):
        dual_cone_weights(G, G, solver="quadprg")


def test_a_solver_that_fails_is_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    qpsolvers = pytest.importorskip("qpsolvers")
    conflict = torch.tensor([[1.0, -0.5], [-0.5, 1.0]])
    monkeypatch.setattr(qpsolvers, "solve_qp", lambda *args, **kwargs: None)
    message = (
        r"'quadprog', which failed on target 0 of 2: no solution was found\. Choose solver='auto'"
    )
    with pytest.raises(ArgumentError, match=message):
        upgrad_weights(conflict, solver="quadprog")

    def raises(*args: object, **kwargs: object) -> np.ndarray:
        raise RuntimeError("matrix G is not positive definite")

    monkeypatch.setattr(qpsolvers, "solve_qp", raises)
    with pytest.raises(ArgumentError, match=r"failed on target 0 of 2: matrix G is not positive"):
        upgrad_weights(conflict, solver="quadprog")


# The checks themselves


def test_rows_of_a_jacobian_are_named_by_themselves() -> None:
    J = torch.zeros(4, 4)
    J[0, 2] = torch.nan
    J[3] = torch.inf
    with pytest.raises(NonFiniteError, match=r"row\(s\) 0, 3 of 4\. Look at the losses"):
        check_finite("jacobian", J)


# --- The certificates themselves: they are zero at a solution, and see every kind of error


CONFLICT = torch.tensor([[1.0, -1.0], [-1.0, 4.0]], dtype=torch.float64)  # unit diagonal: -1/2
EYE = torch.eye(2, dtype=torch.float64)


def test_the_solution_has_no_residual() -> None:
    solution = torch.tensor([[1.0, 0.25], [1.0, 1.0]], dtype=torch.float64)
    residuals = dual_cone_residuals(CONFLICT, EYE, solution, reg=0.0)
    assert_close(residuals.infeasibility, torch.zeros(2, dtype=torch.float64))
    assert_close(residuals.violation, torch.zeros(2, dtype=torch.float64))
    assert_close(residuals.slackness, torch.zeros(2, dtype=torch.float64))
    # Row 1 has the target (0, 1), on the unit-diagonal scale (0, 2), and the weights (1, 2).
    assert_close(residuals.growth, torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([0.5, 0.0], (0.5, 0.5 / 2, 0.0)),  # below its target, and in conflict with row 1
        ([1.0, 0.0], (0.0, 0.5, 0.0)),  # no more than the target: in conflict with row 1
        ([1.0, 0.5], (0.0, 0.0, 0.5)),  # more than needed: row 1 is paid and gains
    ],
)
def test_every_error_is_seen(weights: list[float], expected: tuple[float, ...]) -> None:
    residuals = dual_cone_residuals(CONFLICT, EYE[0], torch.tensor(weights), reg=0.0)
    assert tuple(map(float, residuals[:3])) == pytest.approx(expected)


def test_the_certificate_is_of_the_program_that_was_asked() -> None:
    gramian = FAMILIES["low_rank"](12, 0)
    eye = torch.eye(12, dtype=torch.float64)
    weights = dual_cone_weights(gramian, eye, reg=1e-2)
    assert dual_cone_residuals(gramian, eye, weights, reg=1e-2).violation.max() <= 1e-10
    assert dual_cone_residuals(gramian, eye, weights, reg=0.0).violation.max() > 1e-4


def test_the_least_norm_certificate_sees_every_error() -> None:
    assert max(map(float, min_norm_residuals(CONFLICT, min_norm_weights(CONFLICT)))) <= 1e-15
    assert min_norm_residuals(CONFLICT, torch.tensor([1.5, -0.5])).infeasibility == 0.5
    assert min_norm_residuals(CONFLICT, torch.tensor([0.5, 0.4])).infeasibility == pytest.approx(
        0.1
    )
    only_second = min_norm_residuals(CONFLICT, torch.tensor([0.0, 1.0]))
    assert only_second.violation == pytest.approx(5 / 6)  # (-1 - 4) / (2 * (1 + 2))
    even = min_norm_residuals(CONFLICT, torch.tensor([0.5, 0.5]))
    assert even.slackness > 0.05


# --- float64 on the device that has it, else on the host


def test_only_devices_without_float64_have_none() -> None:
    kinds = ("cpu", "cuda", "xpu", "mps")
    assert [kind for kind in kinds if not has_float64(torch.device(kind))] == ["mps"]


def test_float64_is_there_on_a_host() -> None:
    x = torch.tensor([1.5, -2.0], requires_grad=True)
    found = in_float64(x)
    assert found.dtype == torch.float64
    found.sum().backward()
    assert x.grad is not None
    assert placed(found, torch.device("cpu")) is found

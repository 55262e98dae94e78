"""Every message: what must hold, what was found, what to do."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from lightning_jd.errors import ArgumentError, NonFiniteError, ShapeError, UnknownNameError
from lightning_jd.linalg import (
    cagrad_weights,
    check_finite,
    dual_cone_weights,
    min_norm_weights,
    upgrad_weights,
)

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

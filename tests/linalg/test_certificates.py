"""The certificates themselves: they are zero at a solution, and see every kind of error."""

import pytest
import torch
from torch.testing import assert_close

from lightning_jd.linalg import (
    dual_cone_residuals,
    dual_cone_weights,
    min_norm_residuals,
    min_norm_weights,
)
from tests.helpers.gramians import FAMILIES

G = torch.tensor([[1.0, -1.0], [-1.0, 4.0]], dtype=torch.float64)  # unit diagonal: -1/2
EYE = torch.eye(2, dtype=torch.float64)


def test_the_solution_has_no_residual() -> None:
    solution = torch.tensor([[1.0, 0.25], [1.0, 1.0]], dtype=torch.float64)
    residuals = dual_cone_residuals(G, EYE, solution, reg=0.0)
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
    residuals = dual_cone_residuals(G, EYE[0], torch.tensor(weights), reg=0.0)
    assert tuple(map(float, residuals[:3])) == pytest.approx(expected)


def test_the_certificate_is_of_the_program_that_was_asked() -> None:
    gramian = FAMILIES["low_rank"](12, 0)
    eye = torch.eye(12, dtype=torch.float64)
    weights = dual_cone_weights(gramian, eye, reg=1e-2)
    assert dual_cone_residuals(gramian, eye, weights, reg=1e-2).violation.max() <= 1e-10
    assert dual_cone_residuals(gramian, eye, weights, reg=0.0).violation.max() > 1e-4


def test_the_least_norm_certificate_sees_every_error() -> None:
    assert max(map(float, min_norm_residuals(G, min_norm_weights(G)))) <= 1e-15
    assert min_norm_residuals(G, torch.tensor([1.5, -0.5])).infeasibility == 0.5
    assert min_norm_residuals(G, torch.tensor([0.5, 0.4])).infeasibility == pytest.approx(0.1)
    only_second = min_norm_residuals(G, torch.tensor([0.0, 1.0]))
    assert only_second.violation == pytest.approx(5 / 6)  # (-1 - 4) / (2 * (1 + 2))
    even = min_norm_residuals(G, torch.tensor([0.5, 0.5]))
    assert even.slackness > 0.05

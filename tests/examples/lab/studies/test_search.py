"""The walk over the grid of learning rates, and the statistics of its results."""

import math

import pytest

from examples.lab.statistics import standard_error
from examples.lab.studies._search import GRID, best_exponent, learning_rate


@pytest.mark.parametrize("start", [-60, -27, 0, 24])
@pytest.mark.parametrize("optimum", [-58, -36, -7, 22])
def test_the_walk_finds_the_bottom_of_a_valley(start: int, optimum: int) -> None:
    tried: list[int] = []

    def area(k: int) -> float:
        tried.append(k)
        return math.inf if k > optimum + 3 else 1.0 + abs(k - optimum)

    assert best_exponent(area, start) == optimum
    assert len(tried) == len(set(tried)), "a run is never repeated"


def test_the_grid_is_that_of_the_paper() -> None:
    rates = [learning_rate(k) for k in GRID]
    assert len(rates) == 22
    assert rates[0] == pytest.approx(1e-5)
    assert rates[-1] == pytest.approx(1e2)
    assert rates[1] / rates[0] == pytest.approx(10 ** (1 / 3))


def test_a_standard_error_needs_two_finite_values() -> None:
    assert standard_error([1.0]) is None
    assert standard_error([1.0, math.inf]) is None
    assert standard_error([1.0, 3.0]) == pytest.approx(1.0)

"""The walk over the grid of learning rates, and the statistics of its results."""

import math
from collections.abc import Callable

import pytest

from examples.lab.statistics import smooth_mean, standard_error
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


def test_a_margin_of_two_steps_over_an_unlucky_neighbour() -> None:
    areas: dict[int, float] = {0: 3.0, -4: 3.5, -8: 2.0, -12: 2.5, -16: 2.6}
    assert best_exponent(lambda k: areas.get(k, 9.0), start=0, margin=1) == 0
    assert best_exponent(lambda k: areas.get(k, 9.0), start=0, margin=2) == -8


def test_a_fine_walk_stays_near_its_start() -> None:
    tried: list[int] = []

    def area(k: int) -> float:
        tried.append(k)
        return abs(k + 7)

    assert best_exponent(area, start=-8, step=2, halvings=5) == -7
    assert sorted(tried) == [-10, -9, -8, -7, -6]


@pytest.mark.parametrize("area", [lambda k: math.inf, lambda k: math.inf if k > -57 else 1.0])
def test_if_everything_diverges_only_smaller_rates_are_tried(area: Callable[[int], float]) -> None:
    tried: list[int] = []

    def recorded(k: int) -> float:
        tried.append(k)
        return area(k)

    assert best_exponent(recorded, start=-8) < -57
    assert max(tried) == -8


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


def test_the_mean_of_no_curves_is_empty() -> None:
    assert smooth_mean([]) == []

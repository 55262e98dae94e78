"""The clock of the benchmarks: who runs when, and what becomes of the samples."""

import time
from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from examples.lab import clock as module
from examples.lab.clock import Timing, interleaved, ratio
from lightning_jd.errors import ArgumentError


def recorders(log: list[str], *names: str) -> dict[str, Callable[[], None]]:
    return {name: lambda name=name: log.append(name) for name in names}


def test_every_round_has_all_candidates_in_an_order_of_its_own() -> None:
    log: list[str] = []
    timings = interleaved(recorders(log, "a", "b", "c"), repeats=300, warmup=0)
    rounds = [tuple(log[k : k + 3]) for k in range(0, len(log), 3)]
    assert all(sorted(each) == ["a", "b", "c"] for each in rounds)
    shares = [rounds.count(order) / len(rounds) for order in permutations("abc")]
    assert min(shares) > 0.1
    assert max(shares) < 0.25
    assert {len(timing.samples) for timing in timings.values()} == {300}
    again: list[str] = []
    interleaved(recorders(again, "a", "b", "c"), repeats=300, warmup=0)
    assert again == log  # in every run


def test_warm_up_rounds_run_but_are_not_kept() -> None:
    log: list[str] = []
    timings = interleaved(recorders(log, "a"), repeats=2, warmup=3)
    assert len(log) == 5
    assert len(timings["a"].samples) == 2


def test_a_spent_budget_ends_the_rounds_after_at_least_one() -> None:
    timings = interleaved({"slow": lambda: time.sleep(0.002)}, repeats=1000, budget=0.01)
    assert 1 <= len(timings["slow"].samples) < 10
    timings = interleaved({"slow": lambda: time.sleep(0.002)}, repeats=1000, budget=0.0)
    assert len(timings["slow"].samples) == 1


def test_progress_is_told_about_every_timed_round() -> None:
    ticks: list[int] = []
    interleaved({"a": list}, repeats=4, warmup=2, progress=lambda: ticks.append(1))
    assert len(ticks) == 4


def test_the_cpu_clock_does_not_count_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    sleep = {"sleep": lambda: time.sleep(0.02)}
    assert interleaved(sleep, repeats=1, clock="wall")["sleep"].median >= 0.02
    assert interleaved(sleep, repeats=1, clock="cpu")["sleep"].median < 0.02


def test_each_sample_is_the_difference_of_two_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def wait(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setitem(module.CLOCKS, "wall", lambda: now[0])
    lasting = {"a": iter([1.0, 2.0]), "b": iter([4.0, 6.0])}
    candidates = {name: lambda each=each: wait(next(each)) for name, each in lasting.items()}
    timings = interleaved(candidates, repeats=2, warmup=0)
    assert timings["a"].samples == (1.0, 2.0)
    assert timings["b"].samples == (4.0, 6.0)
    assert ratio(timings["b"], timings["a"]) == 3.5


def test_a_single_sample_is_its_own_quartiles() -> None:
    timing = Timing((0.5,))
    assert (timing.lower, timing.median, timing.upper) == (0.5, 0.5, 0.5)


def test_ratios_are_paired_so_that_a_slow_round_does_not_count() -> None:
    disturbed = Timing((1.0, 100.0, 1.0)), Timing((0.5, 50.0, 0.5))
    assert ratio(*disturbed) == 2.0


def test_a_candidate_too_short_for_the_clock_gives_a_finite_ratio() -> None:
    assert ratio(Timing((1e-6,)), Timing((0.0,))) == pytest.approx(1000.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"candidates": {}, "repeats": 1}, "must not be empty or zero, got 0 candidates"),
        ({"candidates": {"a": list}, "repeats": 0}, "got 1 candidates and 0 repeats"),
        ({"candidates": {"a": list}, "repeats": 1, "clock": "sun"}, "'wall' or 'cpu', got 'sun'"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        interleaved(**arguments)


def test_timings_of_different_rounds_are_not_compared() -> None:
    with pytest.raises(ArgumentError, match="must come from the same rounds, got 1 and 2 samples"):
        ratio(Timing((1.0,)), Timing((1.0, 2.0)))

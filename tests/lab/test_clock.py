"""The clock of the benchmarks: who runs when, and what becomes of the samples."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from lightning_jd.errors import ArgumentError
from lightning_jd.lab import clock as module
from lightning_jd.lab.clock import Timing, interleaved, ratio


def recorders(log: list[str], *names: str) -> dict[str, Callable[[], None]]:
    return {name: lambda name=name: log.append(name) for name in names}


def test_candidates_take_turns_and_every_second_round_is_reversed() -> None:
    log: list[str] = []
    timings = interleaved(recorders(log, "a", "b"), repeats=3, warmup=0)
    assert log == ["a", "b", "b", "a", "a", "b"]
    assert {name: len(timing.samples) for name, timing in timings.items()} == {"a": 3, "b": 3}


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
    readings = iter([0.0, 1.0, 10.0, 14.0, 20.0, 26.0, 30.0, 32.0])
    monkeypatch.setitem(module.CLOCKS, "wall", lambda: next(readings))
    timings = interleaved({"a": list, "b": list}, repeats=2, warmup=0)
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

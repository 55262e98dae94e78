"""The clock of the benchmarks: who runs when, and what becomes of the samples."""

from collections.abc import Callable
from itertools import permutations

from examples.lab.clock import Timing, interleaved, ratio


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


def test_ratios_are_paired_so_that_a_slow_round_does_not_count() -> None:
    disturbed = Timing((1.0, 100.0, 1.0)), Timing((0.5, 50.0, 0.5))
    assert ratio(*disturbed) == 2.0

"""Time several candidates in one run, in turns, so that the noise of a machine hits all alike."""

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from examples.lab.device import here, wait_for_device
from lightning_jd.errors import ArgumentError

Clock = Literal["wall", "cpu"]
#: What reads each clock, in seconds.
CLOCKS: dict[Clock, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass(frozen=True)
class Timing:
    """The durations of one candidate, in seconds, one per round.

    Example:
        >>> timing = Timing((0.3, 0.1, 0.2, 0.5, 0.4))
        >>> timing.median, timing.lower, timing.upper
        (0.3, 0.2, 0.4)
    """

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle duration."""
        return statistics.median(self.samples)

    @property
    def lower(self) -> float:
        """The first quartile."""
        return self._quartiles()[0]

    @property
    def upper(self) -> float:
        """The third quartile."""
        return self._quartiles()[2]

    def _quartiles(self) -> list[float]:
        if len(self.samples) == 1:
            return [self.samples[0]] * 3
        return statistics.quantiles(self.samples, n=4, method="inclusive")


def interleaved(
    candidates: Mapping[str, Callable[[], object]],
    *,
    repeats: int,
    warmup: int = 1,
    clock: Clock = "wall",
    budget: float | None = None,
    progress: Callable[[], object] | None = None,
) -> dict[str, Timing]:
    """Time every candidate once per round, round after round.

    Each round has an order of its own, drawn at random: nobody always runs after the candidate that
    empties the caches, or after itself.

    Args:
        candidates: Name to function without arguments. A device that is measured on is waited for.
        repeats: The number of timed rounds.
        warmup: The number of rounds before the first timed one.
        clock: ``"wall"``, or ``"cpu"`` for the processor time of all threads of this process,
            which other processes disturb less.
        budget: Begin no further round after this many seconds (but time at least one), for
            candidates so slow that ``repeats`` rounds would take minutes.
        progress: Called after each timed round.

    Returns:
        Name to :class:`Timing`; all have the same number of samples, and sample r of each comes
        from round r.

    Raises:
        ArgumentError: If there is no candidate, no round, or no such clock.
    """
    if not candidates or repeats < 1:
        raise ArgumentError(
            f"`candidates` and `repeats` must not be empty or zero, got {len(candidates)} "
            f"candidates and {repeats} repeats."
        )
    check_clock(clock)
    now = CLOCKS[clock]
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    begin, orders = time.perf_counter(), random.Random(0)
    for r in range(-warmup, repeats):
        if budget is not None and r > 0 and time.perf_counter() - begin > budget:
            break
        for name, candidate in orders.sample(list(candidates.items()), len(candidates)):
            wait_for_device()
            start = now()
            candidate()
            wait_for_device()
            duration = now() - start
            if r >= 0:
                samples[name].append(duration)
        if r >= 0 and progress is not None:
            progress()
    return {name: Timing(tuple(durations)) for name, durations in samples.items()}


def check_clock(clock: Clock) -> None:
    """Raise unless there is such a clock, and it sees the device that work is measured on."""
    if clock not in CLOCKS:
        raise ArgumentError(f"`clock` must be 'wall' or 'cpu', got {clock!r}.")
    if clock == "cpu" and here().type != "cpu":
        raise ArgumentError(f"`clock` must be 'wall' on a device, got 'cpu' on {here()}.")


def best_clock() -> Clock:
    """The clock that other programs disturb least: on a device only that of the wall sees it."""
    return "cpu" if here().type == "cpu" else "wall"


def ratio(a: Timing, b: Timing) -> float:
    """How many times as long as ``b`` does ``a`` take: the median of the ratios of each round.

    Example:
        >>> ratio(Timing((2.0, 40.0, 6.0)), Timing((1.0, 10.0, 3.0)))
        2.0

    Raises:
        ArgumentError: If the two do not come from the same rounds.
    """
    return ratios(a, b).median


def ratios(a: Timing, b: Timing) -> Timing:
    """The ratio of each round.

    Raises:
        ArgumentError: If the two do not come from the same rounds.
    """
    if len(a.samples) != len(b.samples):
        raise ArgumentError(
            f"`a` and `b` must come from the same rounds, got {len(a.samples)} and "
            f"{len(b.samples)} samples. Time them in one call of `interleaved`."
        )
    # A clock may be too coarse to see a very short candidate: no division by zero.
    pairs = zip(a.samples, b.samples, strict=True)
    return Timing(tuple(x / max(y, 1e-9) for x, y in pairs))

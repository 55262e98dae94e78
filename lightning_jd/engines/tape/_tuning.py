"""Choosing between exact variants by measuring each of them once."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping

_REPEATS = 2
_HOPELESS = 4.0  # a variant that is this many times slower in its first run is not run again
_REMEMBERED = 512

_choices: OrderedDict[Hashable, str] = OrderedDict()


def fastest(key: Hashable, variants: Mapping[str, Callable[[], object]]) -> str:
    """The name of the fastest variant, measured once per key.

    All variants must give the same result up to rounding, so that the choice cannot matter.

    Args:
        key: The shapes and whatever else the durations depend on.
        variants: What to measure; a single one is not run.
    """
    if key in _choices:
        _choices.move_to_end(key)
        return _choices[key]
    best, shortest = next(iter(variants)), float("inf")
    if len(variants) > 1:
        for name, variant in variants.items():
            duration = _duration(variant, shortest)
            if duration < shortest:
                best, shortest = name, duration
    _choices[key] = best
    if len(_choices) > _REMEMBERED:
        _choices.popitem(last=False)
    return best


def _duration(variant: Callable[[], object], to_beat: float) -> float:
    shortest = float("inf")
    for _ in range(1 + _REPEATS):
        begin = time.perf_counter()
        variant()
        shortest = min(shortest, time.perf_counter() - begin)
        if shortest > _HOPELESS * to_beat:
            break
    return shortest

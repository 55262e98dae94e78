"""Choosing between exact variants by measuring each of them once.

Durations depend on sizes, but which variant wins hardly does: keys hold sizes up to a factor of
two, so that batches of ever new sizes are not measured over and over again.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

_REPEATS = 2  # after one run that only warms up
_MANY_REPEATS = 8  # of what is so short that whatever else the machine does would decide
_SHORT = 2e-3  # seconds
_HOPELESS = 3.0  # a variant that is this many times slower is not repeated
_REMEMBERED = 512

_choices: OrderedDict[Hashable, str] = OrderedDict()


def rounded(sizes: Iterable[int]) -> tuple[int, ...]:
    """Sizes up to a factor of two.

    Example:
        >>> rounded((100, 127, 128))
        (7, 7, 8)
    """
    return tuple([size.bit_length() for size in sizes])


def fastest(key: Hashable, variants: Mapping[str, Callable[[], object]]) -> str:
    """The name of the fastest variant, measured once per key.

    All variants must give the same result up to rounding, so that the choice cannot matter. Where
    it may not (``torch.use_deterministic_algorithms``, ``Trainer(deterministic=True)``), the first
    one is taken.

    Args:
        key: Rounded sizes and whatever else the durations depend on.
        variants: What to measure; a single one is not run. Tensors that they return tell the device
            that is waited for.
    """
    if torch.are_deterministic_algorithms_enabled():
        return next(iter(variants))
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


def _wait_for(result: object) -> None:
    """A device that was asked goes on by itself: a clock is read when it is done."""
    for leaf in tree_leaves(result):
        if isinstance(leaf, Tensor) and leaf.device.type != "cpu":
            torch.get_device_module(leaf.device).synchronize(leaf.device)
            return


def _duration(variant: Callable[[], object], to_beat: float) -> float:
    shortest = float("inf")
    _wait_for(variant())
    for repeat in range(_MANY_REPEATS):
        begin = time.perf_counter()
        _wait_for(variant())
        shortest = min(shortest, time.perf_counter() - begin)
        is_enough = repeat + 1 >= _REPEATS and shortest > _SHORT
        if is_enough or shortest > _HOPELESS * to_beat:
            break
    return shortest

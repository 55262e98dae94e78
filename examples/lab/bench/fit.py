"""``bench fit``: what the Trainer adds to a step of Jacobian descent."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import torch

from examples.lab.bench._turns import in_turns
from examples.lab.clock import Clock, Timing, ratio
from examples.lab.console import progress_bar
from examples.lab.device import here, measured_on
from examples.lab.folders import writable_folder
from examples.lab.report import Report, Value
from examples.lab.threads import threads_of_torch
from examples.lab.work.module import WorkModule
from examples.lab.work.networks import Work, cnn, mlp, mlp_tasks
from lightning_jd.errors import ArgumentError

_MUST = 1.10
_WORK: dict[str, Callable[[], Work]] = {
    "CNN for CIFAR-10, 32 instances": lambda: cnn("cifar10"),
    "CNN for MNIST, 32 instances": lambda: cnn("mnist"),
    "MLP 784-1024-1024-10, 64 instances": lambda: mlp(64),
    "MLP trunk, 8 tasks": lambda: mlp_tasks(8),
}
_COLUMNS = {
    "work": "work",
    "loop_ms": "loop ms",
    "fit_ms": "fit ms",
    "ratio": "fit / loop",
    "mark": "at most 1.1",
    "plain_ratio": "the same for plain training",
    "added_us": "added by the plugin, µs",
}


def fit(
    threads: int = 2,
    clock: Clock = "wall",
    repeats: int = 60,
    device: str = "cpu",
    output: Path = Path("results"),
) -> None:
    """Time a step with UPGrad inside of ``Trainer.fit`` against the same step in a plain loop.

    A step is everything from one batch to the next: forward, Gramian, weights, gradients, SGD. The
    two take turns, step by step, and a ratio is the median of the ratios of neighbours. The same is
    measured for plain training, which shows how much of it is Lightning's own; what the plugin adds
    is the difference between the two differences.

    Args:
        threads: Threads of torch.
        clock: "wall", or "cpu" for the processor time of all threads, which other programs disturb
            less.
        repeats: Timed steps of each kind.
        device: Where models and data are: "cpu", "cuda", ...
        output: The folder for fit.json and fit.md.
    """
    if repeats < 1:
        raise ArgumentError(f"`repeats` must be at least 1, got {repeats}.")
    writable_folder(output)
    rows = []
    with threads_of_torch(threads), measured_on(device):
        with progress_bar(total=len(_WORK)) as start:
            for name, build in _WORK.items():
                start(name)
                rows.append(measure(name, build, repeats, clock))
        note = f"Medians of {repeats} steps by the {clock} clock, {threads} threads."
        report = Report("fit", "A step inside of Trainer.fit", _COLUMNS, rows, (note,))
    report.publish(output)


def measure(name: str, build: Callable[[], Work], repeats: int, clock: Clock) -> dict[str, Value]:
    """One line of the table."""
    loop, inside = _in_turns(build, "upgrad", repeats, clock)
    plain_loop, plain_inside = _in_turns(build, None, repeats, clock)
    found = ratio(inside, loop)
    added = _median_difference(inside, loop) - _median_difference(plain_inside, plain_loop)
    return {
        "work": name,
        "loop_ms": 1e3 * loop.median,
        "fit_ms": 1e3 * inside.median,
        "ratio": found,
        "mark": "met" if found <= _MUST else "missed",
        "plain_ratio": ratio(plain_inside, plain_loop),
        "added_us": 1e6 * added,
    }


def _median_difference(a: Timing, b: Timing) -> float:
    return statistics.median(x - y for x, y in zip(a.samples, b.samples, strict=True))


def _in_turns(
    build: Callable[[], Work], aggregator: str | None, repeats: int, clock: Clock
) -> tuple[Timing, Timing]:
    torch.manual_seed(0)
    by_hand = build().to(here())
    return in_turns(
        by_hand,
        WorkModule(build().to(here()), plain=aggregator is None),
        aggregator,
        repeats,
        clock,
    )

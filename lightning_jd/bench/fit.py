"""``lightning-jd bench fit``: what the Trainer adds to a step of Jacobian descent."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import torch

from lightning_jd.bench._clock import Timing, ratio
from lightning_jd.bench._console import console, progress_bar
from lightning_jd.bench._models import Work, cnn, mlp, mlp_tasks
from lightning_jd.bench._module import WorkModule, mean_of
from lightning_jd.bench._report import Report, Value
from lightning_jd.core import backward
from lightning_jd.errors import ArgumentError
from lightning_jd.experiments._lightning import bare_trainer, quiet
from lightning_jd.surfaces.lightning_pytorch import JacobianDescent

Clock = Literal["wall", "cpu"]
_MUST = 1.10
_NOW = {"wall": time.perf_counter, "cpu": time.process_time}
_WARMUP = 5
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
        output: The folder for fit.json and fit.md.
    """
    if threads < 1 or repeats < 1:
        raise ArgumentError(
            f"`threads` and `repeats` must be at least 1, got {threads} and {repeats}."
        )
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        rows = []
        with progress_bar(total=len(_WORK)) as start:
            for name, build in _WORK.items():
                start(name)
                rows.append(measure(name, build, repeats, clock))
        note = f"Medians of {repeats} steps by the {clock} clock, {threads} threads."
        report = Report("fit", "A step inside of Trainer.fit", _COLUMNS, rows, (note,))
    finally:
        torch.set_num_threads(before)
    report.print()
    data, page = report.write(output)
    console().print(f"Wrote {data} and {page}.")


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
    """Time steps of a loop and of a fit; without an aggregator, of plain training."""
    torch.manual_seed(0)
    by_hand, by_trainer = build(), build()
    turns = _Turns(_loop_step(by_hand, aggregator), repeats, _NOW[clock])
    callbacks = [] if aggregator is None else [JacobianDescent(aggregator)]
    with quiet():
        trainer = bare_trainer(1, callbacks)
        trainer.fit(WorkModule(by_trainer, plain=aggregator is None), turns)
    return Timing(tuple(turns.loop[_WARMUP:])), Timing(tuple(turns.inside[_WARMUP:]))


class _Turns:
    """A loader that takes a step of the loop before each batch, and times the step in between."""

    def __init__(self, step: Callable[[], None], repeats: int, now: Callable[[], float]) -> None:
        self._step, self._repeats, self._now = step, repeats + _WARMUP, now
        self.loop: list[float] = []
        self.inside: list[float] = []

    def __len__(self) -> int:
        return self._repeats

    def __iter__(self) -> Iterator[int]:
        for i in range(self._repeats):
            start = self._now()
            self._step()
            between = self._now()
            yield i
            self.inside.append(self._now() - between)
            self.loop.append(between - start)
        # The Trainer does not come back after the last batch: it has its own count.


def _loop_step(work: Work, aggregator: str | None) -> Callable[[], None]:
    optimizer = torch.optim.SGD(work.model.parameters(), lr=1e-3)

    def step() -> None:
        losses = work.losses()
        optimizer.zero_grad()
        if aggregator is None:
            mean_of(losses).backward()
        else:
            backward(losses, work.model, aggregator)
        optimizer.step()

    return step

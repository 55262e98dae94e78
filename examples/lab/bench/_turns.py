"""Steps of a plain loop and of ``Trainer.fit`` in turns, so that the noise hits both alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from lightning.pytorch import LightningModule

from examples.lab.clock import CLOCKS, Clock, Timing, check_clock
from examples.lab.device import wait_for_device
from examples.lab.trainer import bare_trainer, quiet
from examples.lab.work.networks import Work, mean_of
from lightning_jd.core import backward
from lightning_jd.surfaces.lightning_pytorch import JacobianDescent

_WARMUP = 5


def in_turns(
    by_hand: Work, by_trainer: LightningModule, aggregator: str | None, repeats: int, clock: Clock
) -> tuple[Timing, Timing]:
    """Time steps of a loop and of a fit; without an aggregator, of plain training.

    Args:
        by_hand: The work of the loop.
        by_trainer: The module of the fit; it gets the number of the step as its batch.
        aggregator: By name, or ``None``.
        repeats: Timed steps of each kind.
        clock: Wall or processor time.

    Returns:
        The timings of the loop and of the fit.
    """
    check_clock(clock)
    turns = _Turns(_loop_step(by_hand, aggregator), repeats, CLOCKS[clock])
    callbacks = [] if aggregator is None else [JacobianDescent(aggregator)]
    with quiet():
        bare_trainer(1, callbacks).fit(by_trainer, turns)
    return Timing(tuple(turns.loop[_WARMUP:])), Timing(tuple(turns.inside[_WARMUP:]))


class _Turns:
    """A loader that takes a step of the loop before each batch, and times the step in between."""

    def __init__(self, step: Callable[[], None], repeats: int, now: Callable[[], float]) -> None:
        # One more: the Trainer does not come back after the last batch, so that is not timed.
        self._step, self._repeats, self._now = step, repeats + _WARMUP + 1, now
        self.loop: list[float] = []
        self.inside: list[float] = []

    def __len__(self) -> int:
        return self._repeats

    def __iter__(self) -> Iterator[int]:
        for i in range(self._repeats):
            start = self._read()
            self._step()
            between = self._read()
            yield i
            self.inside.append(self._read() - between)
            self.loop.append(between - start)

    def _read(self) -> float:
        wait_for_device()
        return self._now()


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

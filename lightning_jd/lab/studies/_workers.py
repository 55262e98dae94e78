"""Runs of a study, one after the other or side by side in processes of one thread each."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from multiprocessing.connection import wait
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from lightning_jd.errors import ArgumentError
from lightning_jd.lab.data import Images, load, paper_subset
from lightning_jd.lab.studies._rates import Trained
from lightning_jd.lab.studies._run import Outcome, Run
from lightning_jd.lab.studies._settings import Setting
from lightning_jd.lab.studies._store import Runs, stored_runs
from lightning_jd.lab.studies._training import train
from lightning_jd.lab.work.paper import ARCHITECTURES

_Answer = TypeVar("_Answer")


class Crew:
    """Gives the outcome of a run, from the store if it is there.

    A run that raises has an infinite area and does not stop the others; it is noted in
    :attr:`failures`, and not kept, so that the next start tries it again.

    Args:
        store: The finished runs.
        trained: Trains a run.
        announce: Called with a description when a run is finished.
    """

    def __init__(self, store: Runs, trained: Trained, announce: Callable[[str], None]) -> None:
        self.store, self._trained, self._announce = store, trained, announce
        self._lock = threading.Lock()
        #: Runs that raised, and what.
        self.failures: dict[Run, str] = {}

    def __call__(self, run: Run, rival: Sequence[float] | None = None) -> Outcome:
        outcome = self._outcome(run, rival)
        with self._lock:
            name = Setting(run.aggregator, run.reg).label
            self._announce(f"seed {run.seed} {name}, lr {run.lr:.2g}")
        return outcome

    def _outcome(self, run: Run, rival: Sequence[float] | None) -> Outcome:
        with self._lock:
            if run in self.store:
                return self.store[run]
        try:
            outcome = self._trained(run, rival)
        except BrokenExecutor:  # a worker was killed: there is nobody left to train
            raise
        except Exception as error:
            with self._lock:
                self.failures[run] = f"{type(error).__name__}: {error}"
            return Outcome([], [], [], [], [], end="diverged")
        with self._lock:
            self.store.add(run, outcome)
        return outcome


@contextmanager
def crew(
    dataset: str,
    folder: str,
    size: int,
    store: Path,
    workers: int,
    announce: Callable[[str], None],
) -> Iterator[Crew]:
    """Open a crew; with one worker it trains in this process, with more in others.

    Args:
        dataset: Name of the dataset.
        folder: Where its official files are.
        size: The number of images in a run.
        store: The file of finished runs.
        workers: How many runs are trained at a time.
        announce: Called with a description when a run is finished.

    Raises:
        ArgumentError: If there is no worker, files are missing or damaged, or have too few images.
    """
    if workers < 1:
        raise ArgumentError(f"`workers` must be at least 1, got {workers}.")
    split = load(dataset, folder)  # also before other processes do: one clear message, not many
    paper_subset(split, seed=1, size=size)
    if workers == 1:
        yield Crew(stored_runs(store), _Trainer(split), announce)
        return
    pool = ProcessPoolExecutor(
        workers,
        # A fork would inherit locks of torch's threads in an unknown state.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_enter,
        initargs=(dataset, folder),
    )
    try:
        with _ctrl_c_put_off():
            for _ in range(workers):
                pool.submit(_ready)
        yield Crew(stored_runs(store), lambda *job: pool.submit(_work, *job).result(), announce)
    finally:
        # What is running is lost, what is finished is in the store.
        processes = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()


@contextmanager
def _ctrl_c_put_off() -> Iterator[None]:
    """Ctrl-C reaches all processes of a terminal, but is for this one, which ends the others.

    Processes that are started meanwhile inherit that it is blocked; here it is only put off.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def side_by_side(jobs: Sequence[Callable[[], _Answer]], workers: int) -> list[_Answer]:
    """The answers of jobs that wait for a crew, so many at a time, in the order of the jobs."""
    if workers == 1:
        return [job() for job in jobs]
    threads = ThreadPoolExecutor(workers)
    try:
        futures = [threads.submit(job) for job in jobs]
        return [future.result() for future in futures]
    finally:
        # Not waiting: after Ctrl-C the threads go on only when the crew is dismissed.
        threads.shutdown(wait=False, cancel_futures=True)


class _Trainer:
    """Trains runs in this process."""

    def __init__(self, split: Images) -> None:
        self._split = split
        self._subset = lru_cache(maxsize=4)(self._draw)

    def _draw(self, seed: int, size: int) -> tuple[Tensor, Tensor]:
        return paper_subset(self._split, seed, size)

    def __call__(self, run: Run, rival: Sequence[float] | None) -> Outcome:
        images, labels = self._subset(run.seed, run.size)
        return train(run, ARCHITECTURES[run.dataset], images, labels, rival)


_trainer: _Trainer | None = None  # of a worker's process


def _enter(dataset: str, folder: str) -> None:
    global _trainer
    torch.set_num_threads(1)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    _trainer = _Trainer(load(dataset, folder))


def _ready() -> None:
    """Nothing: asking for it starts a worker."""


def _leave_with_parent() -> None:
    """End this process when the one that started it is killed: nobody waits for the answer."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _work(run: Run, rival: Sequence[float] | None) -> Outcome:
    assert _trainer is not None
    return _trainer(run, rival)

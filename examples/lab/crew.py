"""Runs of a study, one after the other or side by side in processes of one thread each."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any, Generic, TypeVar

import torch

from examples.lab.device import here, stay_on
from examples.lab.store import Store
from lightning_jd.errors import ArgumentError

Run = TypeVar("Run")
Found = TypeVar("Found")
_Answer = TypeVar("_Answer")


class Crew(Generic[Run, Found]):
    """Gives what a run finds, from the store if it is there.

    A run that raises does not stop the others; it is noted in :attr:`failures`, and not kept, so
    that the next start tries it again.

    Args:
        store: The finished runs.
        trained: Trains a run; gets the hints that the crew is called with, too.
        announce: Called with a description when a run is finished.
        label: The description of a run.
        failed: What a run that raises counts as.
    """

    def __init__(
        self,
        store: Store[Run, Found],
        trained: Callable[..., Found],
        announce: Callable[[str], None],
        label: Callable[[Run], str],
        failed: Found,
    ) -> None:
        self.store, self._trained, self._announce = store, trained, announce
        self._label, self._failed = label, failed
        self._lock = threading.Lock()
        #: Runs that raised, and what.
        self.failures: dict[Run, str] = {}

    def __call__(self, run: Run, *hints: Any) -> Found:
        """Train the run, unless it is in the store."""
        found = self._found(run, *hints)
        with self._lock:
            self._announce(self._label(run))
        return found

    def _found(self, run: Run, *hints: Any) -> Found:
        with self._lock:
            if run in self.store:
                return self.store[run]
        try:
            found = self._trained(run, *hints)
        except BrokenExecutor:  # a worker was killed: there is nobody left to train
            raise
        except Exception as error:
            with self._lock:
                self.failures[run] = f"{type(error).__name__}: {error}"
            return self._failed
        with self._lock:
            self.store.add(run, found)
        return found


@contextmanager
def hired(
    workers: int, build: Callable[..., Callable[..., Found]], *arguments: Any
) -> Iterator[Callable[..., Found]]:
    """Open a crew's workers: one trains in this process, more in processes of their own.

    All of them are on the device of this measurement.

    Args:
        workers: How many runs are trained at a time.
        build: A function of a module, so that it can be sent to processes: makes what trains a run.
            Called once in every process.
        arguments: Of that function.

    Raises:
        ArgumentError: If there is no worker.
    """
    if workers < 1:
        raise ArgumentError(f"`workers` must be at least 1, got {workers}.")
    if workers == 1:
        yield build(*arguments)
        return
    pool = ProcessPoolExecutor(
        workers,
        # A fork would inherit locks of torch's threads in an unknown state.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_enter,
        initargs=(str(here()), build, arguments),
    )
    try:
        with _ctrl_c_put_off():
            for _ in range(workers):
                pool.submit(_ready)
        yield lambda *job: pool.submit(_work, *job).result()
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


_trained: Callable[..., Any] | None = None  # of a worker's process


def _enter(device: str, build: Callable[..., Callable[..., Any]], arguments: Sequence[Any]) -> None:
    global _trained
    torch.set_num_threads(1)
    stay_on(device)
    threading.Thread(target=leave_with_parent, daemon=True).start()
    _trained = build(*arguments)


def _ready() -> None:
    """Nothing: asking for it starts a worker."""


def leave_with_parent() -> None:
    """End this process when the one that started it is killed: nobody waits for the answer."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _work(*job: Any) -> Any:
    assert _trained is not None
    return _trained(*job)

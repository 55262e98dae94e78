"""The number of threads, and how busy the machine is, for the time of a measurement."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from lightning_jd.errors import ArgumentError


@contextmanager
def threads_of_torch(threads: int) -> Iterator[None]:
    """Compute with this many threads inside of the block, and with as many as before after it.

    Raises:
        ArgumentError: If there is not at least one.
    """
    if threads < 1:
        raise ArgumentError(f"`threads` must be at least 1, got {threads}.")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for torch and for the BLAS of NumPy and SciPy, inside of the block."""
    with threads_of_torch(1), threadpool_limits(1):
        yield


@contextmanager
def busy_cores() -> Iterator[None]:
    """A process that never rests for each core, inside of the block."""
    work = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(work) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()

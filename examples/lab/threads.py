"""The number of threads of torch, and processes that compete for the cores, while one measures."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from lightning_jd.errors import ArgumentError

# Ends with the process that has started it, however that ends.
_SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"


@contextmanager
def threads_of_torch(threads: int | None) -> Iterator[None]:
    """Compute with this many threads inside of the block, and with as many as before after it.

    Args:
        threads: How many; ``None`` keeps torch's own number.

    Raises:
        ArgumentError: If there is not at least one.
    """
    if threads is not None and threads < 1:
        raise ArgumentError(f"`threads` must be at least 1, got {threads}.")
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
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
    """Inside of the block, one other process per core computes all the time."""
    command = [sys.executable, "-S", "-c", _SPIN]
    others = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()

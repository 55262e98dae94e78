"""The number of threads of torch, for the time of a measurement."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

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

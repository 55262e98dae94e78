"""Any number of gloo processes that meet through a file, for what two of them cannot show."""

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run_in_processes(work: Callable[[int, Path], None], folder: Path, processes: int) -> None:
    """Call ``work(rank, folder)`` in some processes; an error in one of them is raised here."""
    mp.spawn(_enter, args=(work, folder, processes), nprocs=processes)


def _enter(rank: int, work: Callable[[int, Path], None], folder: Path, processes: int) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=processes)
    try:
        work(rank, folder)
    finally:
        dist.destroy_process_group()

"""Two gloo processes that Lightning finds already started, and that meet through a file."""

import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run_in_two_processes(work: Callable[[int, Path], None], folder: Path) -> None:
    """Call ``work(rank, folder)`` in two processes; an error in one of them is raised here."""
    mp.spawn(_enter, args=(work, folder), nprocs=2)


def _enter(rank: int, work: Callable[[int, Path], None], folder: Path) -> None:
    torch.set_num_threads(1)
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": 2}
    address = {"MASTER_ADDR": "localhost", "MASTER_PORT": 0}  # read by Lightning, not used
    # Lightning joins processes that somebody else has started if torchrun seems to have done it.
    environment = {**ranks, **address, "LOCAL_WORLD_SIZE": 2, "TORCHELASTIC_RUN_ID": "tests"}
    os.environ.update({name: str(value) for name, value in environment.items()})
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    try:
        work(rank, folder)
    finally:
        dist.destroy_process_group()

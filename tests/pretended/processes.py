"""Two processes that each have the device, and a strict process group between them."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch.distributed as dist

from tests.helpers.two_processes import PATIENCE, Work, run_in_two_processes


def run_on_two_devices(
    work: Work, folder: Path, patience: float = PATIENCE, mortal: int | None = None
) -> None:
    """Call ``work(rank, folder)`` in two processes with a strict group; see the other helper."""
    run_in_two_processes(partial(_strictly, work, patience), folder, patience, mortal)


def _strictly(work: Callable[[int, Path], None], patience: float, rank: int, folder: Path) -> None:
    from tests.pretended._process_group import STRICT

    # The store of this attempt: what an earlier one has left behind would lead to dead processes.
    store = dist.PrefixStore("strict", dist.distributed_c10d._get_default_store())
    dist.destroy_process_group()  # that of gloo, which takes tensors of the host
    dist.init_process_group(
        STRICT,
        store=store,
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=patience),
    )
    work(rank, folder)

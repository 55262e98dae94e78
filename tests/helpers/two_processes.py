"""Two gloo processes that Lightning finds already started, and that meet through a file.

They are started once (importing Lightning takes seconds) and serve all tests of a session. Each
test gets a process group of its own.
"""

import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

Work = Callable[[int, Path], None]
#: How long a process may wait for the other one, unless a test asks for less.
PATIENCE = 120.0


def run_in_two_processes(
    work: Work, folder: Path, patience: float = PATIENCE, mortal: int | None = None
) -> None:
    """Call ``work(rank, folder)`` in two processes; an error in one of them is raised here.

    Args:
        work: A function of a module, so that it can be sent.
        folder: A folder of this test alone, where the processes meet.
        patience: Seconds that a collective operation may take.
        mortal: The rank of a process that is to die; the work is done when the other one is ready.
    """
    try:
        _run(work, folder, patience, mortal, "store")
    except _UnconnectedError:  # once in a while gloo does not connect: nothing was done yet
        _run(work, folder, patience, mortal, "second store")


class _UnconnectedError(AssertionError):
    """The two processes have not found each other."""


def _run(work: Work, folder: Path, patience: float, mortal: int | None, store: str) -> None:
    global _pair
    _pair = _pair or _Pair()
    ready = False
    try:
        _pair.run(work, folder, patience, mortal, store)
        ready = mortal is None
    finally:
        if not ready:  # whatever it was, the two are no longer in step
            _pair.stop()
            _pair = None


class _Pair:
    """Two processes that wait for work."""

    def __init__(self) -> None:
        context = mp.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        for rank in range(2):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, theirs), daemon=True)
            process.start()
            theirs.close()  # so that the pipe ends when the process does
            self._pipes.append(ours)
            self._processes.append(process)

    def run(
        self, work: Work, folder: Path, patience: float, mortal: int | None, store: str
    ) -> None:
        for pipe in self._pipes:
            pipe.send((work, folder, patience, store))
        waiting = [pipe for rank, pipe in enumerate(self._pipes) if rank != mortal]
        while waiting:
            for pipe in wait(waiting):
                assert isinstance(pipe, Connection)
                rank = self._pipes.index(pipe)
                try:
                    error = pipe.recv()
                except EOFError:
                    error = "the process has ended"
                if error is not None:
                    if "connectFullMesh failed" in error:
                        raise _UnconnectedError(error)
                    raise AssertionError(f"In process {rank}:\n{error}")
                waiting.remove(pipe)

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


_pair: _Pair | None = None


def _serve(rank: int, pipe: Connection) -> None:
    torch.set_num_threads(1)
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": 2}
    address = {"MASTER_ADDR": "localhost", "MASTER_PORT": 0}  # read by Lightning, not used
    # Lightning joins processes that somebody else has started if torchrun seems to have done it.
    environment = {**ranks, **address, "LOCAL_WORLD_SIZE": 2, "TORCHELASTIC_RUN_ID": "tests"}
    os.environ.update({name: str(value) for name, value in environment.items()})
    while True:
        try:
            work, folder, patience, store = pipe.recv()
        except EOFError:  # the session is over
            return
        pipe.send(_attempt(rank, work, folder, patience, store))


def _attempt(rank: int, work: Work, folder: Path, patience: float, store: str) -> str | None:
    """Do the work in a process group of its own; the error, if there was one."""
    os.chdir(folder)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/{store}",
            rank=rank,
            world_size=2,
            timeout=timedelta(seconds=patience),
        )
        try:
            work(rank, folder)
        finally:
            dist.destroy_process_group()
    except BaseException:
        return traceback.format_exc()
    return None

"""Two gloo processes that Lightning finds already started, and that meet through a file.

They are started once (importing Lightning takes seconds) and serve all tests of a session. Each
test gets a process group of its own.
"""

import os
import sys
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.distributed_c10d import _set_pg_timeout

Work = Callable[[int, Path], None]
#: How long a process may wait for the other one, unless a test asks for less.
PATIENCE = 120.0
#: How often processes try to connect: gloo fails now and then where the machine is busy.
_ATTEMPTS = 3


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
    global _pair
    _pair = _pair or Team(2)
    ready = False
    try:
        _pair.run(work, folder, patience, mortal)
        ready = mortal is None
    finally:
        if not ready:  # whatever it was, the two are no longer in step
            _pair.stop()
            _pair = None


class Team:
    """Processes that wait for work.

    What they send back decides, not how they end: torch may abort when a process ends whose threads
    still run.
    """

    def __init__(self, size: int) -> None:
        context = mp.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, size, theirs), daemon=True)
            process.start()
            theirs.close()  # so that the pipe ends when the process does
            self._pipes.append(ours)
            self._processes.append(process)

    def run(
        self, work: Work, folder: Path, patience: float = PATIENCE, mortal: int | None = None
    ) -> None:
        """Call ``work(rank, folder)`` in all processes; arguments as above."""
        for attempt in range(_ATTEMPTS):
            self._send((work, folder, patience, f"file://{folder}/store{attempt}"))
            errors = [self._answer(pipe) for pipe in self._pipes]
            self._send(are_connected := not any(errors))
            if are_connected:
                break
        else:
            raise AssertionError(f"The processes do not connect:\n{errors}")
        waiting = [pipe for rank, pipe in enumerate(self._pipes) if rank != mortal]
        while waiting:
            for pipe in wait(waiting):
                assert isinstance(pipe, Connection)
                if error := self._answer(pipe):
                    raise AssertionError(f"In process {self._pipes.index(pipe)}:\n{error}")
                waiting.remove(pipe)

    def _send(self, message: object) -> None:
        for pipe in self._pipes:
            pipe.send(message)

    def _answer(self, pipe: Connection) -> str | None:
        try:
            error: str | None = pipe.recv()
        except EOFError:
            error = "the process has ended"
        return error

    def stop(self) -> None:
        """End all processes."""
        for process in self._processes:
            process.kill()
            process.join()


_pair: Team | None = None


def _serve(rank: int, size: int, pipe: Connection) -> None:
    torch.set_num_threads(1)
    if sys.platform == "linux":  # gloo otherwise asks what the name of the host stands for
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": size}
    address = {"MASTER_ADDR": "localhost", "MASTER_PORT": 0}  # read by Lightning, not used
    # Lightning joins processes that somebody else has started if torchrun seems to have done it.
    environment = {**ranks, **address, "LOCAL_WORLD_SIZE": size, "TORCHELASTIC_RUN_ID": "tests"}
    os.environ.update({name: str(value) for name, value in environment.items()})
    try:
        while True:
            work, folder, patience, store = pipe.recv()
            os.chdir(folder)
            pipe.send(_error_of(_connect, rank, size, store))
            if pipe.recv():  # all of them are connected
                pipe.send(_error_of(_work, work, rank, folder, patience))
            elif dist.is_initialized():
                dist.destroy_process_group()
    except EOFError:  # the session is over
        leave()


def _error_of(function: Callable[..., None], *arguments: Any) -> str | None:
    try:
        function(*arguments)
    except BaseException:
        return traceback.format_exc()
    return None


def _connect(rank: int, size: int, store: str) -> None:
    patience = timedelta(seconds=PATIENCE)  # the other one may be busy with its imports
    dist.init_process_group("gloo", store, patience, world_size=size, rank=rank)


def _work(work: Work, rank: int, folder: Path, patience: float) -> None:
    """Do the work in the process group of this test."""
    _set_pg_timeout(timedelta(seconds=patience))
    try:
        with warnings.catch_warnings():  # filters that a test or an import has left are not its own
            warnings.resetwarnings()
            work(rank, folder)
    finally:
        dist.destroy_process_group()


def leave() -> None:
    """End this process at once: torch may abort while it takes down threads that still run."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)

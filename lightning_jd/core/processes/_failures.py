"""A process that fails tells the others, which would wait for it otherwise.

Before the processes exchange the rows of a step, each of them answers to a roll call. One whose own
code has raised an error, in ``training_step`` or in a data loader, answers with that error instead.
Elsewhere (in a hook between two steps) the others are not at a roll call, but wait for something
else. They notice when the process has ended, and find the reason in the store of the group.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from lightning_jd.core.processes._pool import Pool
from lightning_jd.errors import ArgumentError, PeerError

#: How long a process with an error waits for the others, who may be in a forward pass.
PATIENCE = timedelta(seconds=10)
_KEY = "lightning_jd/failure"
#: What gloo and NCCL say when a process that is waited for has ended, or does not answer.
_SIGNS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Timed out waiting",
    "NCCL communicator was aborted",
    "remote process has exited",
    "collective operation timeout",
)


class Answer(NamedTuple):
    """What a process says at a roll call.

    Attributes:
        failed: 0, or one more than the rank of the process, if that has failed.
        scalar: Whether it has one scalar loss.
        several: Whether it has several losses, or an empty list of them.
    """

    failed: int
    scalar: int
    several: int


def check_peers(device: torch.device | None, *, scalar: bool = False) -> None:
    """Say that this process can go on with the step, and learn whether all others can.

    Args:
        device: Where tensors that are sent must be.
        scalar: Whether it has one scalar loss, which is trained as always, and no rows. Then it
            does not take part in what the others exchange.

    Raises:
        PeerError: If another process has failed; with its error.
        ArgumentError: If some processes have a scalar and others have several losses.
    """
    if Pool().size == 1:
        return
    failed, scalars, several = _call(Answer(0, scalar, not scalar), device, None)
    if failed:
        raise PeerError(
            f"All processes must take part in a step, but process {failed - 1} has failed: "
            f"{_text(None, failed - 1)}. Its own output has the whole traceback."
        )
    if scalars and several:
        raise ArgumentError(
            "All processes must have several losses in a step, or all must have one scalar, got "
            f"{'one scalar' if scalar else 'several losses'} on process {Pool().rank} and "
            f"{'several losses' if scalar else 'one scalar'} on another. Return the losses in the "
            "same form everywhere: a vector may be empty, and a dict may lack tasks."
        )


def report_failure(error: BaseException, device: torch.device) -> None:
    """Answer the roll call of the others with an error, if they come to one soon.

    An error that only says that a process is gone is made clear instead.

    Args:
        error: What was raised in this process.
        device: Where tensors that are sent must be.
    """
    if Pool().size == 1 or isinstance(error, PeerError) or not isinstance(error, Exception):
        return
    if any(sign in str(error) for sign in _SIGNS):
        error.args = (
            f"Another process has ended or does not answer{_noted()}. Its own output has the whole "
            f"traceback; this process cannot go on without it. ({error})",
        )
        return
    text = f"{type(error).__name__}: {error}"
    try:
        failed = _call(Answer(Pool().rank + 1, False, False), device, PATIENCE).failed
        _text(text, failed - 1)
    except RuntimeError:  # they are busy or gone, and this process is about to raise its own error
        _note(f"process {Pool().rank} has failed: {text}")


def _call(answer: Answer, device: torch.device | None, patience: timedelta | None) -> Answer:
    """The answers of all processes in one: the largest of each number."""
    largest = torch.tensor(answer, device=device)
    work = dist.all_reduce(largest, dist.ReduceOp.MAX, async_op=True)
    if patience is None:
        work.wait()
    else:
        work.wait(patience)
    return Answer(*largest.tolist())


def _text(text: str | None, source: int) -> str:
    """What the process ``source`` has to say."""
    texts = [text]
    dist.broadcast_object_list(texts, source)
    return str(texts[0])


def _note(text: str) -> None:
    """Leave a text where the others find it, if they can still be reached at all."""
    with suppress(RuntimeError):
        dist.distributed_c10d._get_default_store().set(_KEY, text)


def _noted() -> str:
    """What another process has left, as a part of a sentence."""
    with suppress(RuntimeError):
        store = dist.distributed_c10d._get_default_store()
        if store.check([_KEY]):
            return f": {store.get(_KEY).decode()}"
    return ""

"""A process that fails tells the others, which would wait for it otherwise.

Before the processes exchange the rows of a step, each of them answers to a roll call. One whose own
code has raised an error, in ``training_step`` or in a data loader, answers with that error instead.
Elsewhere (in a hook between two steps) the others are not at a roll call, but wait for something
else. They notice when the process has ended, and find the reason in the store of the group.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist

from lightning_jd.core._pool import Pool
from lightning_jd.errors import PeerError

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


def answer(device: torch.device) -> None:
    """Say that this process can go on with the step, and learn whether all others can.

    Args:
        device: Where tensors that are sent must be.

    Raises:
        PeerError: If another process has failed; with its error.
    """
    if Pool().size == 1:
        return
    failed = _call(0, device, None)
    if failed:
        raise PeerError(
            f"All processes must take part in a step, but process {failed - 1} has failed: "
            f"{_text(None, failed - 1)}. Its own output has the whole traceback."
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
        failed = _call(Pool().rank + 1, device, PATIENCE)
        _text(text, failed - 1)
    except RuntimeError:  # they are busy or gone, and this process is about to raise its own error
        _note(f"process {Pool().rank} has failed: {text}")


def _call(answer: int, device: torch.device, patience: timedelta | None) -> int:
    """The largest answer of all processes: 0, or one more than the rank of one that has failed."""
    largest = torch.tensor([answer], device=device)
    work = dist.all_reduce(largest, dist.ReduceOp.MAX, async_op=True)
    if patience is None:
        work.wait()
    else:
        work.wait(patience)
    return int(largest)


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

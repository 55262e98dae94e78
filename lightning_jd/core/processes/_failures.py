"""A process that fails tells the others, which would wait for it otherwise.

One whose own code has raised an error, in ``training_step`` or in a data loader, answers the next
roll call of the others with it. Elsewhere (in a hook between two steps) the others are not at a
roll call, but wait for something else. They notice when the process has ended, and find the reason
in the store of the group.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist

from lightning_jd.core.processes._pool import Pool
from lightning_jd.core.processes._roll_call import Answer, answers, check, failed_rank, text_of
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


def check_peers(device: torch.device | None, *, scalar: bool = False) -> None:
    """Say that this process can go on with the step, and learn whether all others can.

    Args:
        device: Where tensors that are sent must be.
        scalar: Whether it has one scalar loss, and no rows.

    Raises:
        PeerError: If another process has failed; with its error.
        ArgumentError: If some processes have a scalar and others have several losses.
    """
    if Pool().size > 1:
        check(answers(Answer(scalar=scalar), device))


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
        heard = answers(Answer(failed=True), device, PATIENCE)
        text_of(failed_rank(heard), text)
    except RuntimeError:  # they are busy or gone, and this process is about to raise its own error
        _note(f"process {Pool().rank} has failed: {text}")


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

"""The roll call: before processes exchange anything, each of them announces that it can go on.

A process whose own code has raised an error, in ``training_step`` or in a data loader, answers the
next roll call of the others with it; they would wait for it for ever. Elsewhere (in a hook between
two steps) the others wait for something else. They notice when the process has ended, and find the
reason in the store of the group.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

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
    """The answer of a process at a roll call.

    Attributes:
        failed: Whether its own code has raised an error.
        scalar: Whether it has one scalar loss, which is trained as always, and no rows.
        digest: That of the value that it gathers.
    """

    failed: bool = False
    scalar: bool = False
    digest: int = 0


def answers(
    own: Answer, device: torch.device | None, patience: timedelta | None = None
) -> list[Answer]:
    """The answers of all processes; ``patience`` limits how long the others are waited for."""
    sent = torch.tensor([2 * own.failed + own.scalar, own.digest], device=device)
    received = [torch.empty_like(sent) for _ in range(dist.get_world_size())]
    work = dist.all_gather(received, sent, async_op=True)
    work.wait() if patience is None else work.wait(patience)
    numbers = torch.stack(received).tolist()
    return [Answer(bool(code & 2), bool(code & 1), digest) for code, digest in numbers]


def check(answers: list[Answer]) -> None:
    """Raise, on all processes alike, if they cannot go on together.

    Raises:
        PeerError: If a process has failed; with its error.
        ArgumentError: If some processes have a scalar and others have several losses.
    """
    if any(answer.failed for answer in answers):
        failed = failed_rank(answers)
        raise PeerError(
            f"All processes must take part in a step, but process {failed} has failed: "
            f"{text_of(failed)}. Its own output has the whole traceback."
        )
    if len({answer.scalar for answer in answers}) > 1:
        own = dist.get_rank()
        scalar = answers[own].scalar
        raise ArgumentError(
            "All processes must have several losses in a step, or all must have one scalar, got "
            f"{'one scalar' if scalar else 'several losses'} on process {own} and "
            f"{'several losses' if scalar else 'one scalar'} on another. Return the losses in the "
            "same form everywhere: a vector may be empty, and a dict may lack tasks."
        )


def failed_rank(answers: list[Answer]) -> int:
    """The process whose error is reported: the last of those that have failed."""
    return max(rank for rank, answer in enumerate(answers) if answer.failed)


def text_of(source: int, text: str | None = None) -> str:
    """The text of the process ``source``; ``text`` if that is this one."""
    texts = [text]
    dist.broadcast_object_list(texts, source)
    return str(texts[0])


def check_peers(device: torch.device | None, *, scalar: bool = False) -> None:
    """Hold a roll call on several processes; ``scalar``: this one has one scalar loss, no rows."""
    if _size() > 1:
        check(answers(Answer(scalar=scalar), device))


def report_failure(error: BaseException, device: torch.device) -> None:
    """Answer the roll call of the others with an error of this process, if they come to one soon.

    An error that only says that a process is gone is made clear instead.
    """
    if _size() == 1 or isinstance(error, PeerError) or not isinstance(error, Exception):
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
        _note(f"process {dist.get_rank()} has failed: {text}")


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


def _size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1

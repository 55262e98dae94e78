"""Before processes exchange anything, each of them says that it can go on, and what it has.

One whose own code has raised an error answers with that error instead; the others would wait for it
for ever. Everything that is agreed on goes through here, so that a process with an error need not
know what the others are about to agree on.
"""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from lightning_jd.errors import ArgumentError, PeerError


class Answer(NamedTuple):
    """What a process says at a roll call.

    Attributes:
        failed: Whether its own code has raised an error.
        scalar: Whether it has one scalar loss, which is trained as always, and no rows. Then it
            does not take part in what the others exchange.
        digest: That of the value that it gathers.
    """

    failed: bool = False
    scalar: bool = False
    digest: int = 0


def answers(
    own: Answer, device: torch.device | None, patience: timedelta | None = None
) -> list[Answer]:
    """The answers of all processes.

    Args:
        own: The answer of this process.
        device: Where tensors that are sent must be.
        patience: How long to wait for the others; as long as the process group does by default.
    """
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
    """The process that tells its error: the last of those that have failed."""
    return max(rank for rank, answer in enumerate(answers) if answer.failed)


def text_of(source: int, text: str | None = None) -> str:
    """What the process ``source`` has to say; ``text`` if that is this one."""
    texts = [text]
    dist.broadcast_object_list(texts, source)
    return str(texts[0])

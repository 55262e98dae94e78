"""The other processes of a distributed run, as far as a step needs them.

All processes call every method in the same order. Only this module, :mod:`._roll_call` and
:mod:`._ddp` import :mod:`torch.distributed`.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_jd.core.processes._roll_call import Answer, answers, check

H = TypeVar("H", bound=Hashable)


@dataclass(frozen=True)
class _Memory:
    """What is remembered of a process group between steps.

    Attributes:
        gathered: Gathered values by digest, the same on all processes.
        scratch: Memory by type that is used again: on a CPU, new pages take as long as to fill
            them.
    """

    gathered: dict[int, Any] = field(default_factory=dict)
    scratch: dict[torch.dtype, Tensor] = field(default_factory=dict)

    def brief(self, size: int, like: Tensor) -> Tensor:
        """An uninitialised vector that is valid until the next call."""
        if like.device.type != "cpu":
            return like.new_empty(size)
        found = self.scratch.get(like.dtype)
        if found is None or len(found) < size:
            found = self.scratch[like.dtype] = like.new_empty(size)
        return found[:size]


_memories: WeakKeyDictionary[Any, _Memory] = WeakKeyDictionary()
#: Batches that all have other sizes must not fill the memory.
_LIMIT = 1000


class Pool:
    """All processes of the default group, or this one alone if there is no group.

    Args:
        device: Where the tensors of this process are.
        alone: This process only, whether or not there are others.

    Attributes:
        device: Where the tensors of this process are.
        size: The number of processes.
        rank: Which of them this is.
        sent: Bytes that this process has sent, by purpose. For reductions and broadcasts it is the
            share of this process in what all of them send if none sends more than it must: those
            of a ring.

    Example:
        >>> pool = Pool()  # not distributed: everything is already there
        >>> pool.size, pool.gather("mine"), pool.exchange(torch.ones(1, 2), [1], [2])
        (1, ['mine'], tensor([[1., 1.]]))
    """

    def __init__(self, device: torch.device | None = None, *, alone: bool = False) -> None:
        distributed = not alone and dist.is_available() and dist.is_initialized()
        self.size = dist.get_world_size() if distributed else 1
        self.rank = dist.get_rank() if distributed else 0
        self.sent: Counter[str] = Counter()
        self.device = device

    def gather(self, value: H) -> list[H]:
        """The (small, picklable) values of all processes, in the order of their ranks.

        Most steps repeat the values of an earlier step. So a digest goes first, and the value only
        if the digest of some process is new. This is a roll call, too.

        Raises:
            PeerError: If another process has failed; with its error.
            ArgumentError: If another process has a scalar, and no rows.
        """
        if self.size == 1:
            return [value]
        known = _memory().gathered
        heard = answers(Answer(digest=_digest(value)), self.device)
        self.sent["agreement"] += (self.size - 1) * 16
        check(heard)
        digests = [answer.digest for answer in heard]
        if not all(digest in known for digest in digests):
            values: list[H] = [value] * self.size
            dist.all_gather_object(values, value)
            self.sent["agreement"] += (self.size - 1) * len(pickle.dumps(value))
            if len(known) > _LIMIT:
                known.clear()
            known |= dict(zip(digests, values, strict=True))
        return [known[digest] for digest in digests]

    def sum(self, tensor: Tensor, purpose: str) -> Tensor:
        """The sum over processes of tensors of equal shape, the same bits everywhere."""
        if self.size > 1:
            tensor = tensor.detach().contiguous().clone()
            dist.all_reduce(tensor)
            self.sent[purpose] += 2 * (self.size - 1) * tensor.nbytes // self.size
        return tensor

    def exchange(
        self,
        rows: Tensor,
        counts: Sequence[int],
        widths: Sequence[int],
        purpose: str = "rows",
        *,
        is_brief: bool = False,
    ) -> Tensor:
        """Give every process some columns of the rows of all.

        Args:
            rows: Shape (counts[r], sum of the widths) on rank r.
            counts: How many rows each process has; there may be none.
            widths: How many columns each process gets, from left to right.
            purpose: The key of the bytes in :attr:`sent`.
            is_brief: Whether the result is not read after the next call.

        Returns:
            The rows of all processes, one below the other, cut down to the columns of this one.
        """
        if self.size == 1:
            return rows
        own = widths[self.rank]
        parts = rows.split(list(widths), dim=1)
        # One row is sent from where it is: copies of all columns take longer than the products.
        is_one = len(rows) == 1
        leaving = rows.reshape(-1) if is_one else torch.cat([part.reshape(-1) for part in parts])
        size = sum(counts) * own
        arriving = _memory().brief(size, rows) if is_brief else rows.new_empty(size)
        sizes = [count * own for count in counts]
        dist.all_to_all_single(arriving, leaving, sizes, [part.numel() for part in parts])
        self.sent[purpose] += leaving.nbytes - parts[self.rank].nbytes
        return arriving.view(sum(counts), own)

    def send(
        self, leaving: Sequence[Mapping[str, Sequence[Tensor]]], sizes: Sequence[int], like: Tensor
    ) -> list[Tensor]:
        """Send other tensors to each process, and return what each of them has sent, flat.

        Args:
            leaving: The tensors for each process, by the key of their bytes in :attr:`sent`.
            sizes: How many numbers arrive from each process.
            like: A tensor of the type of all.
        """
        parts = [[part.reshape(-1) for some in each.values() for part in some] for each in leaving]
        lengths = [sum(map(len, some)) for some in parts]
        # A copy of a single part takes as long as its products.
        flat = [part for some in parts for part in some]
        whole = flat[0].contiguous() if len(flat) == 1 else torch.cat([like.new_empty(0), *flat])
        if self.size == 1:
            return [whole]
        arriving = like.new_empty(sum(sizes))
        dist.all_to_all_single(arriving, whole, list(sizes), lengths)
        for rank, each in enumerate(leaving):
            for purpose, some in each.items() if rank != self.rank else ():
                self.sent[purpose] += sum(part.nbytes for part in some)
        return list(arriving.split(list(sizes)))

    def from_first(self, tensor: Tensor, purpose: str) -> Tensor:
        """The tensor of the first process: the same bits everywhere."""
        if self.size > 1:
            tensor = tensor.contiguous()
            dist.broadcast(tensor, 0)
            self.sent[purpose] += (self.size - 1) * tensor.nbytes // self.size
        return tensor

    def computed_by_first(
        self, compute: Callable[[], Tensor], size: int, like: Tensor, purpose: str
    ) -> Tensor:
        """The result of ``compute``, which only the first process calls, or its error, everywhere.

        ``size`` is the length of the result, ``like`` a tensor of its type.
        """
        if self.size == 1:
            return compute()
        failure: Exception | None = None
        result = like.new_full((size,), torch.nan)
        if self.rank == 0:
            try:
                result = compute()
            except Exception as error:
                failure = error
        result = self.from_first(result, purpose)
        if len(result) and bool(result.isnan().all()):  # an error, or a result that is NaN
            errors = [failure and _sendable(failure)]
            dist.broadcast_object_list(errors, 0)
            if (error_of_first := failure or errors[0]) is not None:
                raise error_of_first
        return result


#: This process, which sends nothing.
ALONE = Pool(alone=True)


def _memory() -> _Memory:
    return _memories.setdefault(dist.group.WORLD, _Memory())


@lru_cache(maxsize=_LIMIT)
def _digest(value: Hashable) -> int:
    # Not pickled: equal objects may be pickled in several ways, depending on where they are.
    digest = blake2b(repr(value).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _sendable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever the classes of others do when they are copied
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error

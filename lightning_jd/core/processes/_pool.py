"""The other processes of a distributed run, as far as a step needs them.

Only this module, :mod:`._roll_call` and :mod:`._failures` know :mod:`torch.distributed`. Every
method must be called by all processes in the same order.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_jd.core.processes._memory import memory
from lightning_jd.core.processes._roll_call import Answer, answers, check
from lightning_jd.core.processes._volume import is_gathered, sent_by_sum

H = TypeVar("H", bound=Hashable)


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
        agreed: The digests of what all processes have gathered last: equal if that is.

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
        self.agreed: tuple[int, ...] = ()

    def gather(self, value: H, meanwhile: Callable[[], object] | None = None) -> list[H]:
        """The (small, picklable) values of all processes, in the order of their ranks.

        Most steps say what the step before said. So a digest of the value goes first, and the value
        itself only if some process does not remember it. It is a roll call, too.

        Args:
            value: That of this process.
            meanwhile: Called before the others are waited for, if there are others.

        Raises:
            PeerError: If another process has failed; with its error.
            ArgumentError: If another process has a scalar, and no rows.
        """
        if self.size == 1:
            return [value]
        own = Answer(digest=memory.digest(value), state=memory.state)
        heard = answers(own, self.device, meanwhile=meanwhile)
        self._count("agreement", (self.size - 1) * 24)
        check(heard)
        self.agreed = tuple([answer.digest for answer in heard])
        if len({answer.state for answer in heard}) > 1:
            memory.forget()
        elif all(digest in memory.values for digest in self.agreed):
            return [memory.values[digest] for digest in self.agreed]
        values: list[H] = [value] * self.size
        dist.all_gather_object(values, value)
        self._count("agreement", (self.size - 1) * len(pickle.dumps(value)))
        memory.add(dict(zip(self.agreed, values, strict=True)))
        return values

    def recall(self, key: Hashable) -> Any:
        """What all processes have noted under a key, or ``None``: on all of them, or on none."""
        return memory.notes.get(key) if self.size > 1 else None

    def note(self, key: Hashable, value: Any) -> None:
        """Remember what all processes know, until one of them forgets.

        Args:
            key: The same on all processes, as :attr:`agreed` is.
            value: The same on all processes, and so are the words that ``repr`` has for it.
        """
        if self.size > 1:
            memory.note(key, value)

    def sum(self, tensor: Tensor, purpose: str, *, flags: int = 0) -> Tensor:
        """The sum over processes of tensors of equal shape, the same bits everywhere.

        Args:
            tensor: That of this process.
            purpose: What it is counted under.
            flags: How many numbers of it are an agreement, and counted as one.
        """
        if self.size > 1:
            size, rest = _bytes(tensor), flags * tensor.element_size()
            if is_gathered(size, processes=self.size):
                every = [torch.empty_like(tensor) for _ in range(self.size)]
                dist.all_gather(every, tensor.contiguous())
                tensor, *others = every
                for other in others:  # in the order of the ranks: the same bits everywhere
                    tensor += other
            else:
                tensor = tensor.contiguous().clone()
                dist.all_reduce(tensor)
            sent = sent_by_sum(size, processes=self.size)
            agreed = int(sent * rest / max(1, size))
            self._count(purpose, int(sent) - agreed)
            self._count("agreement", agreed)
        return tensor

    def exchange(
        self,
        rows: Tensor,
        counts: Sequence[int],
        widths: Sequence[int],
        purpose: str = "rows",
        *,
        briefly: bool = False,
    ) -> Tensor:
        """Give every process some columns of the rows of all.

        Args:
            rows: Shape (counts[r], sum of the widths) on rank r.
            counts: How many rows each process has; there may be none.
            widths: How many columns each process gets, from left to right.
            purpose: What it is counted under.
            briefly: The result is not used any more when this method is called again.

        Returns:
            The rows of all processes, one below the other, cut down to the columns of this one.
        """
        if self.size == 1:
            return rows
        own = widths[self.rank]
        parts = rows.split(list(widths), dim=1)
        is_flat = len(rows) == 1 and rows.is_contiguous()
        leaving = rows.view(-1) if is_flat else torch.cat([part.reshape(-1) for part in parts])
        size = sum(counts) * own
        arriving = _scratch(size, rows) if briefly else rows.new_empty(size)
        dist.all_to_all_single(
            arriving,
            leaving,
            [count * own for count in counts],
            [len(rows) * width for width in widths],
        )
        self._count(purpose, _bytes(leaving) - len(rows) * own * rows.element_size())
        return arriving.view(sum(counts), own)

    def send(
        self, leaving: Sequence[Mapping[str, Sequence[Tensor]]], sizes: Sequence[int], like: Tensor
    ) -> Arriving:
        """Send something else to each of the other processes, and go on with other work meanwhile.

        Args:
            leaving: Flat tensors for each process, by what they are counted under.
            sizes: How many numbers arrive from each process.
            like: A tensor of the type of all.
        """
        if self.size == 1:
            return Arriving(None, like.new_empty(0), [0])
        parts = [[part for some in each.values() for part in some] for each in leaving]
        flat = [part for some in parts for part in some]
        packed = flat[0].contiguous() if len(flat) == 1 else torch.cat([like.new_empty(0), *flat])
        arriving = like.new_empty(sum(sizes))
        lengths = [sum(map(len, some)) for some in parts]
        work = dist.all_to_all_single(arriving, packed, list(sizes), lengths, async_op=True)
        for each in leaving:
            for purpose, some in each.items():
                self._count(purpose, sum(map(_bytes, some)))
        return Arriving(work, arriving, sizes, packed)

    def from_first(self, tensor: Tensor, purpose: str) -> Tensor:
        """What the first process holds: the same bits everywhere."""
        if self.size > 1:
            tensor = tensor.contiguous()
            dist.broadcast(tensor, 0)
            self._count(purpose, (self.size - 1) * _bytes(tensor) // self.size)
        return tensor

    def asked_of_first(
        self, compute: Callable[[], Tensor], size: int, like: Tensor, purpose: str
    ) -> Tensor:
        """What the first process computes: the same bits everywhere, or the same error.

        Args:
            compute: Called by the first process only.
            size: The length of its result.
            like: A tensor of the type of its result.
            purpose: What it is counted under.
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
        if len(result) and bool(result.isnan().all()):  # a failure, or a result: ask the first
            told = [failure and _sendable(failure)]
            dist.broadcast_object_list(told, 0)
            if (error_of_first := failure or told[0]) is not None:
                raise error_of_first
        return result

    def _count(self, purpose: str, amount: int) -> None:
        self.sent[purpose] += amount


#: This process, which sends nothing.
ALONE = Pool(alone=True)


class Arriving:
    """What is on its way from the other processes.

    Args:
        work: What to wait for.
        numbers: Where it arrives.
        sizes: How many numbers come from each process.
        leaving: What is on its way to the others, and must live so long.
    """

    def __init__(
        self, work: Any, numbers: Tensor, sizes: Sequence[int], leaving: Tensor | None = None
    ) -> None:
        self._work, self._numbers, self._sizes = work, numbers, list(sizes)
        self._leaving = leaving

    def wait(self) -> list[Tensor]:
        """What each process has sent, flat."""
        if self._work is not None:
            self._work.wait()
        self._leaving = None
        return list(self._numbers.split(self._sizes))


def _sendable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever the classes of others do when they are copied
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


_scratches: dict[torch.dtype, Tensor] = {}


def _scratch(size: int, like: Tensor) -> Tensor:
    """Memory that is used again and again: on a CPU, new pages take as long as what fills them."""
    if like.device.type != "cpu":
        return like.new_empty(size)
    found = _scratches.get(like.dtype)
    if found is None or len(found) < size:
        found = _scratches[like.dtype] = like.new_empty(size)
    return found[:size]

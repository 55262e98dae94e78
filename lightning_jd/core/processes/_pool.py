"""The other processes of a distributed run, as far as a step needs them.

Only this module and :mod:`._failures` know :mod:`torch.distributed`. Every method must be called
by all processes in the same order.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


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
        (1, ['mine'], [tensor([[1., 1.]])])
    """

    def __init__(self, device: torch.device | None = None, *, alone: bool = False) -> None:
        distributed = not alone and dist.is_available() and dist.is_initialized()
        self.size = dist.get_world_size() if distributed else 1
        self.rank = dist.get_rank() if distributed else 0
        self.sent: Counter[str] = Counter()
        self.device = device

    def gather(self, value: T) -> list[T]:
        """The (small, picklable) values of all processes, in the order of their ranks.

        Most steps say what the step before said. So a digest of the value goes first, and the value
        itself only if some process does not remember it. Values must not be changed.
        """
        if self.size == 1:
            return [value]
        digest = _digest(pickle.dumps(value))
        told = torch.tensor([digest, _remembered.state], device=self.device)
        heard = [torch.empty_like(told) for _ in range(self.size)]
        dist.all_gather(heard, told)
        self._count("agreement", (self.size - 1) * told.numel() * told.element_size())
        digests, states = zip(*(pair.tolist() for pair in heard), strict=True)
        if len(set(states)) > 1:
            _remembered.forget()
        elif all(digest in _remembered.values for digest in digests):
            return [_remembered.values[digest] for digest in digests]
        values: list[T] = [value] * self.size
        dist.all_gather_object(values, value)
        self._count("agreement", (self.size - 1) * len(pickle.dumps(value)))
        _remembered.add(digests, values)
        return values

    def sum(self, tensor: Tensor, purpose: str) -> Tensor:
        """The sum over processes of tensors of equal shape, the same bits everywhere."""
        if self.size > 1:
            tensor = tensor.contiguous().clone()
            dist.all_reduce(tensor)
            self._count(purpose, 2 * (self.size - 1) * _bytes(tensor) // self.size)
        return tensor

    def exchange(self, rows: Tensor, counts: Sequence[int], widths: Sequence[int]) -> list[Tensor]:
        """Give every process some columns of the rows of all.

        Args:
            rows: Shape (counts[r], sum of the widths) on rank r.
            counts: How many rows each process has; there may be none.
            widths: How many columns each process gets, from left to right.

        Returns:
            The rows of each process, cut down to the columns of this one.
        """
        if self.size == 1:
            return [rows]
        own = widths[self.rank]
        leaving = torch.cat([part.reshape(-1) for part in rows.split(list(widths), dim=1)])
        arriving = rows.new_empty(sum(counts) * own)
        dist.all_to_all_single(
            arriving,
            leaving,
            [count * own for count in counts],
            [len(rows) * width for width in widths],
        )
        self._count("rows", _bytes(leaving) - len(rows) * own * rows.element_size())
        parts = arriving.split([count * own for count in counts])
        return [part.view(count, own) for part, count in zip(parts, counts, strict=True)]

    def pass_on(self, tensor: Tensor, distance: int, sizes: Sequence[int]) -> Tensor | None:
        """Send a tensor to the process that is so far ahead, and receive from the one behind.

        If the distance is half of the circle, two processes would get what the other has. Then only
        those of the first half receive.

        Args:
            tensor: What to send, flat.
            distance: How far, from 1 to half of the number of processes.
            sizes: How many numbers each process sends; nothing is not sent.

        Returns:
            What the process behind has sent; ``None`` if this process is to receive nothing.
        """
        ahead, behind = (self.rank + distance) % self.size, (self.rank - distance) % self.size
        is_opposite = 2 * distance == self.size
        operations = []
        arriving = None
        if len(tensor) and not (is_opposite and ahead > self.rank):
            operations.append(dist.P2POp(dist.isend, tensor, ahead))
            self._count("factors", _bytes(tensor))
        if not (is_opposite and behind < self.rank):
            arriving = tensor.new_empty(sizes[behind])
            if len(arriving):
                operations.append(dist.P2POp(dist.irecv, arriving, behind))
        for request in dist.batch_isend_irecv(operations) if operations else []:
            request.wait()
        return arriving

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


class _Remembered:
    """What all processes have told one another, by digest.

    All processes add and forget the same, or notice by the state that they did not: one of them may
    have been started anew.
    """

    LIMIT = 1000  # steps whose batches all have other sizes must not fill the memory

    def __init__(self) -> None:
        self.values: dict[int, Any] = {}
        self.state = 0

    def add(self, digests: Sequence[int], values: Sequence[Any]) -> None:
        if len(self.values) > self.LIMIT:
            self.forget()
        self.values |= dict(zip(digests, values, strict=True))
        self.state = _digest(pickle.dumps((self.state, digests)))

    def forget(self) -> None:
        self.values.clear()
        self.state = 0


_remembered = _Remembered()


def _digest(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little", signed=True)


def _sendable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever the classes of others do when they are copied
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()

"""The other processes of a distributed run, as far as a step needs them.

The only module that knows :mod:`torch.distributed`. Every method must be called by all processes
in the same order.
"""

from __future__ import annotations

from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


class Pool:
    """All processes of the default group, or this one alone if there is no group.

    Example:
        >>> pool = Pool()  # not distributed: everything is already there
        >>> pool.size, pool.gather("mine"), pool.union(torch.ones(1, 2))
        (1, ['mine'], tensor([[1., 1.]]))
    """

    def __init__(self) -> None:
        distributed = dist.is_available() and dist.is_initialized()
        self.size = dist.get_world_size() if distributed else 1
        self.rank = dist.get_rank() if distributed else 0

    def gather(self, value: T) -> list[T]:
        """The (small, picklable) values of all processes, in the order of their ranks."""
        if self.size == 1:
            return [value]
        values: list[T] = [value] * self.size
        dist.all_gather_object(values, value)
        return values

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over processes of tensors of equal shape."""
        if self.size > 1:
            tensor = tensor.contiguous().clone()
            dist.all_reduce(tensor)
        return tensor

    def union(self, rows: Tensor) -> Tensor:
        """The rows of all processes, which may have different numbers of them (also none).

        Args:
            rows: Shape (m_r, n) on rank r.

        Returns:
            Shape (m_1 + m_2 + ..., n), equal on all processes.
        """
        if self.size == 1:
            return rows
        counts = self.gather(len(rows))
        padded = rows.new_zeros(max(counts), rows.shape[1])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    def from_first(self, tensor: Tensor) -> Tensor:
        """What the first process holds: the same bits everywhere."""
        if self.size > 1:
            tensor = tensor.contiguous()
            dist.broadcast(tensor, 0)
        return tensor

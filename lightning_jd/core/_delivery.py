"""What each process adds to ``.grad``, so that all end up with the gradient of all rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lightning_jd.core._pool import Pool
from lightning_jd.core._reach import Reach
from lightning_jd.engines import NamedParameters

Gradients = dict[str, Tensor]


class Delivery(NamedTuple):
    """What happens to the gradients after this process has computed them.

    Attributes:
        everywhere: Every process must deliver the gradient of every parameter that some process
            reaches. Otherwise only of those that its own losses reach.
        averaged: The mean over processes is taken later, as DistributedDataParallel does. Then the
            rows of other processes need not be added here, which saves as much traffic as ordinary
            training has. Otherwise the gradient is complete, and a mean of equals changes nothing.
    """

    everywhere: bool = True
    averaged: bool = False

    def factor(self, pool: Pool) -> int:
        """The factor of the gradients of the rows of one process that is to undo the mean."""
        return pool.size if self.averaged else 1


#: Every process gets the whole gradient of every parameter.
COMPLETE = Delivery()


def delivered(
    pool: Pool, reach: Reach, own: Gradients, complete: Gradients, delivery: Delivery
) -> Gradients:
    """The gradients that this process delivers.

    Args:
        pool: The processes.
        reach: Which parameters the losses reach, here and elsewhere.
        own: The gradients of the rows of this process, times :meth:`Delivery.factor`. Their sum
            over processes, or mean if that is what will be taken, is the gradient.
        complete: The gradients of the other parameters, of all rows.
        delivery: What happens to them.
    """
    rest = [(name, tensor) for name, tensor in reach.reached if name not in complete]
    if not delivery.averaged:
        complete, rest = complete | _sum(pool, rest, own), []
    found = {}
    for name, gradient in complete.items():
        share = 1.0 if delivery.everywhere else reach.share_here(name, pool.size)
        if share:
            found[name] = gradient if share == 1 else share * gradient
    for name, tensor in rest:
        if name in own:
            found[name] = own[name]
        elif delivery.everywhere:
            found[name] = torch.zeros_like(tensor)
    return {name: found[name] for name, _ in reach.reached if name in found}


def _sum(pool: Pool, named: NamedParameters, own: Gradients) -> Gradients:
    """The sums over processes, all in one message per type."""
    found = {name: own.get(name, tensor.detach().new_zeros(tensor.shape)) for name, tensor in named}
    if pool.size == 1:
        return found
    for dtype in dict.fromkeys(gradient.dtype for gradient in found.values()):
        some = [name for name, gradient in found.items() if gradient.dtype == dtype]
        flat = pool.sum(torch.cat([found[name].reshape(-1) for name in some]), "gradient")
        parts = flat.split([found[name].numel() for name in some])
        found |= {name: part.view_as(found[name]) for name, part in zip(some, parts, strict=True)}
    return found

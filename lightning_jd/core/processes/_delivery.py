"""What each process adds to ``.grad``, so that all end up with the gradient of all rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lightning_jd.core.processes._pool import Pool
from lightning_jd.core.processes._selection import PooledSelection
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
    pool: Pool,
    selection: PooledSelection,
    own: Gradients,
    complete: Gradients,
    delivery: Delivery,
) -> Gradients:
    """The gradients that this process delivers.

    Args:
        pool: The processes.
        selection: Which parameters the losses reach, here and elsewhere.
        own: The gradients of the rows of this process, times :meth:`Delivery.factor`. Their sum
            over processes, or mean if that is what will be taken, is the gradient.
        complete: The gradients of the other parameters, of all rows.
        delivery: What happens to them.

    Raises:
        ArgumentError: If the gradient of some parameter could not be delivered by anybody.
    """
    if not delivery.everywhere:
        selection.check_deliverable()
    rest = [(name, tensor) for name, tensor in selection.reached if name not in complete]
    # What a process may not deliver, though it has rows of it, others must deliver in its place.
    late = set() if delivery.everywhere else selection.late
    taken = [pair for pair in rest if not delivery.averaged or pair[0] in late]
    complete = complete | _sum(pool, taken, own, delivery)
    found = {}
    for name, tensor in selection.reached:
        share = 1.0 if delivery.everywhere else selection.share_here(name, pool.size)
        if share and name in complete:
            found[name] = complete[name] if share == 1 else share * complete[name]
        elif share:
            found[name] = own[name] if name in own else torch.zeros_like(tensor)
    return found


def _sum(pool: Pool, named: NamedParameters, own: Gradients, delivery: Delivery) -> Gradients:
    """The gradients of all rows, in one message per type."""
    found = {name: own.get(name, tensor.detach().new_zeros(tensor.shape)) for name, tensor in named}
    if pool.size == 1:
        return found
    found = {name: g.to_dense() if g.is_sparse else g for name, g in found.items()}
    for dtype in dict.fromkeys(gradient.dtype for gradient in found.values()):
        some = [name for name, gradient in found.items() if gradient.dtype == dtype]
        flat = pool.sum(torch.cat([found[name].reshape(-1) for name in some]), "gradient")
        flat /= delivery.factor(pool)
        parts = flat.split([found[name].numel() for name in some])
        found |= {name: part.view_as(found[name]) for name, part in zip(some, parts, strict=True)}
    return found

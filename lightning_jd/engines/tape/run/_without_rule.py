"""Gradients per objective at an operation without a rule, which is differentiated alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_jd.engines.tape.contributions import Contribution, Rows
from lightning_jd.engines.tape.graph import Record, Shape, local_vjp
from lightning_jd.engines.tape.owners import Owners
from lightning_jd.engines.tape.owners.flow import is_elementwise
from lightning_jd.engines.tape.rules import NotApplicableError, Site, sum_of_broadcast


def broadcast_once(site: Site, record: Record) -> Contribution | None:
    """The gradients of all objectives at an input of an elementwise operation.

    Autograd sums a gradient to the shape of the input only after the operation, so one call gives
    the summands; they are then summed per owner.

    Returns:
        ``None`` if the operation is no such operation.
    """
    if not is_elementwise(record.name):
        return None
    pulled = local_vjp(site.node, site.cotangents)[site.slots[0]]
    try:
        if pulled is not None and pulled.shape == site.cotangent.shape:
            return sum_of_broadcast(site, pulled)
    except NotApplicableError:
        pass
    return None


def local_rows(
    sites: Sequence[Site], owners: Sequence[Owners | None], m: int
) -> list[Contribution]:
    """The gradients of all objectives at some inputs of any operation.

    It is differentiated once per objective, with the cotangents of the others masked: m times the
    cost of this operation, but of no other.
    """
    first = sites[0]
    rows: list[Tensor | None] = [None] * len(sites)
    for owner in sorted({int(i) for o in owners if o is not None for i in o.ids if i >= 0}):
        masked = [
            None if D is None or who is None else _masked(D, who, owner)
            for D, who in zip(first.cotangents, owners, strict=True)
        ]
        gradients = local_vjp(first.node, masked)
        for j, site in enumerate(sites):
            gradient = gradients[site.slots[0]]
            if gradient is not None:
                row = site.cast(_fitted(gradient, site.shape))
                block = rows[j]
                if block is None:
                    block = rows[j] = row.new_zeros(m, *site.shape)
                block[owner] = row
    return [
        Rows(_nothing(site, m) if block is None else block, site.placements[0])
        for site, block in zip(sites, rows, strict=True)
    ]


def _nothing(site: Site, m: int) -> Tensor:
    return site.cotangent_like.new_zeros(m, *site.shape, dtype=site.dtype)


def _masked(cotangent: Tensor, owners: Owners, owner: int) -> Tensor:
    mask = torch.as_tensor(owners.ids == owner, device=cotangent.device)
    if owners.axis is None:
        return cotangent * mask[0]
    shape = [1] * cotangent.ndim
    shape[owners.axis] = -1
    # not a product: what is infinite elsewhere must not become NaN here
    return torch.where(mask.view(shape), cotangent, torch.zeros_like(cotangent))


def _fitted(gradient: Tensor, shape: Shape) -> Tensor:
    """Autograd sums gradients to the shape of the input only after the operation."""
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    return dense if dense.shape == shape else dense.sum_to_size(shape)

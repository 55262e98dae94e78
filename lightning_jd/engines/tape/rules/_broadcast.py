"""Parameters that are broadcast to activations: sums, products, ``expand``."""

from __future__ import annotations

from torch import Tensor

from lightning_jd.engines.tape.contributions import Contribution, Rows
from lightning_jd.engines.tape.owners import Arrangement, Owners
from lightning_jd.engines.tape.rules._registry import Site, register_rule, require


def sum_of_broadcast(site: Site, pulled: Tensor) -> Contribution:
    """Sum, per owner, what was pulled back to the output over the axes of the broadcast.

    ``pulled`` is the cotangent times the derivative of the output entry by the parameter entry that
    was broadcast to it.
    """
    axis, shape = site.owners.axis, site.shape
    offset = pulled.ndim - len(shape)
    require(axis < offset or shape[axis - offset] == 1)  # else there is an entry per slice
    rows = site.owners.split_cotangent(pulled)
    rows = site.cast(rows.movedim(1, axis + 1))  # (m, *output) with T in place of the axis
    leading = tuple(range(1, 1 + offset))
    ones = tuple(
        1 + offset + position
        for position, size in enumerate(shape)
        if size == 1 and rows.shape[1 + offset + position] != 1
    )
    if leading + ones:
        rows = rows.sum(dim=leading + ones)
    return Rows(rows, site.placements[0])


@register_rule("AddBackward0", 0)
@register_rule("ExpandBackward0", 0)
def addend(site: Site) -> Contribution:
    """Each entry is added once wherever it is broadcast to."""
    return sum_of_broadcast(site, site.cotangent)


@register_rule("RepeatBackward0", 0)
def repeated(site: Site) -> Contribution:
    """Copies of the parameter side by side, each of which belongs to one owner."""
    D, axis, shape = site.cotangent, site.owners.axis, site.shape
    shape = (1,) * (D.ndim - len(shape)) + shape
    copies = site.owners.ids.reshape(-1, shape[axis])
    require(bool((copies == copies[:, :1]).all()))
    sizes = [(size // own, own) for size, own in zip(D.shape, shape, strict=True)]
    D = D.reshape([size for pair in sizes for size in pair])  # (copies, own) of each axis
    summed = [2 * k for k in range(len(shape)) if k != axis]
    D = D.sum(dim=summed, keepdim=True) if summed else D
    per_owner = Arrangement(Owners(2 * axis, copies[:, 0]), site.m).split_cotangent(D)
    return Rows(site.cast(per_owner.sum(dim=1)).reshape(site.m, *site.shape), site.placements[0])


@register_rule("AddBackward0", 1)
def scaled_addend(site: Site) -> Contribution:
    """``x + alpha p``."""
    alpha = site.saved("alpha")
    return sum_of_broadcast(site, site.cotangent if alpha == 1 else site.cotangent * alpha)


@register_rule("MulBackward0", 0, saved=("other",))
def left_factor(site: Site) -> Contribution:
    """``p x``."""
    return sum_of_broadcast(site, site.cotangent * site.saved("other"))


@register_rule("MulBackward0", 1, saved=("self",))
def right_factor(site: Site) -> Contribution:
    """``x p``."""
    return sum_of_broadcast(site, site.cotangent * site.saved("self"))

"""Matrix products with a parameter: ``addmm``, ``mm``, ``mv``, ``bmm``, ``grouped_mm``."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from lightning_jd.engines.tape.contributions import (
    Contribution,
    Matrices,
    OuterProduct,
    RaggedProduct,
    Rows,
)
from lightning_jd.engines.tape.graph import Placement
from lightning_jd.engines.tape.owners import Arrangement, Owners
from lightning_jd.engines.tape.rules._registry import Site, register_rule, require


@register_rule("AddmmBackward0", 2, saved=("mat1",), bias=0)
def addmm_weight(site: Site) -> Contribution:
    """``b + x W``: rows of x meet rows of the cotangent."""
    if len(site.slots) > 1:
        require(site.saved("beta") == 1 and site.placements[1].shape == site.shape[1:])
    return _rows_meet_rows(site, "mat1", site.saved("alpha"))


@register_rule("MmBackward0", 1, saved=("self",))
def mm_right(site: Site) -> Contribution:
    """``x W``: rows of x meet rows of the cotangent."""
    return _rows_meet_rows(site, "self")


def _rows_meet_rows(site: Site, factor: str, alpha: float = 1) -> Contribution:
    require(site.owners.axis == 0)
    if site.owners.is_ragged:
        x = site.saved(factor).to(site.dtype)
        x = x if alpha == 1 else alpha * x
        return RaggedProduct(x, site.cotangent.to(site.dtype), site.owners, *site.placements)
    A = site.split(site.saved(factor))
    A = A if alpha == 1 else alpha * A
    return OuterProduct(A, site.split_cotangent(), *site.placements, cotangents_first=False)


@register_rule("MmBackward0", 0, saved=("mat2",))
def mm_left(site: Site) -> Contribution:
    """``W x``: columns of x meet columns of the cotangent."""
    require(site.owners.axis == 1)
    A = site.split(site.saved("mat2"))
    return OuterProduct(A, site.split_cotangent(), *site.placements, cotangents_first=True)


@register_rule("AddmmBackward0", 0)
def addmm_bias(site: Site) -> Contribution:
    """``b + x W``: a vector b gets the sum over its rows of the cotangent."""
    require(site.owners.axis == 0 and site.saved("beta") == 1)
    require(site.shape == site.cotangent.shape[1:])
    return Rows(site.split_cotangent().sum(dim=1), site.placements[0])


@register_rule("BmmBackward0", 1, saved=("self",))
def bmm_right(site: Site) -> Contribution:
    """``x W``, several at once: rows of x meet rows of the cotangent."""
    return Rows(_products(site, "self").transpose(0, 1), site.placements[0])


@register_rule("BmmBackward0", 0, saved=("mat2",))
def bmm_left(site: Site) -> Contribution:
    """``W x``, several at once: columns of x meet columns of the cotangent."""
    return Rows(_products(site, "mat2").permute(1, 0, 3, 2), site.placements[0])


def _products(site: Site, factor: str) -> Tensor:
    """Activations times cotangents, shape (matrices, m, activations, cotangents)."""
    require(site.owners.axis == (1 if factor == "self" else 2))
    A, D = site.split(site.saved(factor)), site.split_cotangent()  # (m, T, matrices, features)
    return torch.einsum("mtgi,mtgo->gmio", A, D)


@register_rule("GroupedMmBackward0", 1, saved=("self", "offs"))
def grouped_mm(site: Site) -> Contribution:
    """Runs of rows of x, each times a matrix of its own, as tokens and experts."""
    offsets = site.saved("offs")
    require(site.owners.axis == 0 and offsets is not None and len(site.shape) == 3)
    x, D, ids = site.saved("self"), site.cotangent, site.owners.ids
    weight = Placement(site.placements[0].parameter, prod(site.shape[1:]), site.shape[1:])
    parts: list[Contribution] = []
    begin = 0
    for end in offsets.tolist():
        own = Arrangement(Owners(0, ids[begin:end]), site.m)
        A, E = own.split(x[begin:end]), own.split_cotangent(D[begin:end])
        if A.shape[1] == 0:  # a matrix that nothing was multiplied with
            A, E = A.new_zeros(site.m, 1, A.shape[2]), E.new_zeros(site.m, 1, E.shape[2])
        parts.append(
            OuterProduct(A.to(site.dtype), E.to(site.dtype), weight, cotangents_first=False)
        )
        begin = end
    return Matrices(parts, site.placements[0])


@register_rule("MvBackward0", 1, saved=("self",))
def mv_vector(site: Site) -> Contribution:
    """``X v``: row i of X, times entry i of the cotangent."""
    A, D = site.split(site.saved("self")), site.split_cotangent()
    return Rows((A * D.unsqueeze(2)).sum(dim=1), site.placements[0])

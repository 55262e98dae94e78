"""What there is to know of the gradients of the losses without forming them, in one call each."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, overload

import numpy as np
import torch
from torch import Tensor

from lightning_jd.engines._objectives import Losses, Objectives
from lightning_jd.engines._parameters import (
    Groups,
    Parameters,
    split_into_groups,
    whole_parameters_of,
)
from lightning_jd.engines.tape import Parts, Projections, SquaredNorms, Tape
from lightning_jd.engines.tape.contributions import Contribution, merge
from lightning_jd.engines.tape.graph import Placement
from lightning_jd.errors import ArgumentError


def gramian(
    losses: Losses | Objectives, params: Parameters, *, other: Losses | Objectives | None = None
) -> Tensor:
    r"""Inner products of the gradients of the losses, without forming the gradients.

    With J the Jacobian of the m losses, one row per loss, this is :math:`G = J J^\top`. It costs
    about one backward pass if the losses belong to instances that do not mix, one backward pass per
    task for tasks, and never the memory of J. The graph is kept.

    Args:
        losses: A 1-D tensor (one loss per instance), a 2-D tensor (instance and task), a list of
            scalars or a dict of named scalars.
        params: A module, tensors or (name, tensor) pairs; those that require no gradient are left
            out.
        other: Other losses of the same parameters, n of them, such as those of a validation batch.
            With K their Jacobian, the result is :math:`J K^\top`; neither square is computed.

    Returns:
        G, shape (m, m), or (m, n) with ``other``; float64 if a loss or a parameter is, else
        float32.

    Raises:
        GraphError: If no loss depends on a parameter, or autograd cannot see a part of the model.
        SetupError: If parameters are in pieces on several processes (FSDP2).

    Example:
        >>> import torch
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> gramian([x.sum(), x.prod()], [x])
        tensor([[2., 3.],
                [3., 5.]])
        >>> gramian([x.sum(), x.prod()], [x], other=[x[0]])
        tensor([[1.],
                [2.]])
    """
    named = whole_parameters_of(params)
    here = Tape(Objectives.of(losses), named, memory="low")
    if other is None:
        return here.gramian()
    there = Tape(Objectives.of(other), named, memory="low")
    return cross(Half.of(here), Half.of(there))


@overload
def gradient_norms(losses: Losses | Objectives, params: Parameters) -> Tensor: ...
@overload
def gradient_norms(
    losses: Losses | Objectives, params: Parameters, *, groups: Groups
) -> dict[Hashable, Tensor]: ...
def gradient_norms(
    losses: Losses | Objectives, params: Parameters, *, groups: Groups = None
) -> Tensor | dict[Hashable, Tensor]:
    r"""Norms :math:`\lVert g_i \rVert` of the gradients of the losses, without the gradients.

    This is the root of the diagonal of :func:`~lightning_jd.gramian`, without its other entries.
    It costs about one backward pass if the losses belong to instances that do not mix, otherwise
    one per loss. The graph is kept.

    Args:
        losses: A 1-D tensor (one loss per instance), a 2-D tensor (instance and task), a list of
            scalars or a dict of named scalars.
        params: A module, tensors or (name, tensor) pairs; those that require no gradient are left
            out.
        groups: ``"layer"`` for the norms of each module apart, or a function from the name of a
            parameter to its group.

    Returns:
        The norms, shape (m,), float64 if a loss or a parameter is, else float32; with ``groups``, a
        dict from each group to its norms.

    Raises:
        ShapeError: If there is one loss for the whole batch.
        GraphError: If no loss depends on a parameter, or autograd cannot see a part of the model.
        SetupError: If parameters are in pieces on several processes (FSDP2).

    Example:
        >>> import torch
        >>> x = torch.tensor([3.0, 4.0], requires_grad=True)
        >>> gradient_norms([x.sum(), x.square().sum() / 2], [x])
        tensor([1.4142, 5.0000])

    References:
        Goodfellow, *Efficient Per-Example Gradient Computations*, arXiv:1510.01799; Bu, Wang, Zha
        and Karypis, *Differentially Private Optimization on Large Model at Small Cost*, ICML 2023,
        where products of positions or gradients are chosen by their cost, too.
    """
    named = whole_parameters_of(params)
    tape = Tape(Objectives.of(losses).each(), named, memory="low")
    squares = tape.extract(SquaredNorms()).found
    nothing = tape.like().new_zeros(tape.objectives.m)
    position = {name: k for k, (name, _) in enumerate(named)}
    norms = {}
    for group, members in split_into_groups(named, groups).items():
        found = [squares[k].to(nothing) for k in (position[n] for n, _ in members) if k in squares]
        norms[group] = sum(found, nothing).clamp(min=0).sqrt()
    return norms[None] if groups is None else norms


def project(losses: Losses | Objectives, params: Parameters, *, dim: int, seed: int = 0) -> Tensor:
    r"""Random projections :math:`J R` of the gradients of the losses to a few dimensions.

    Inner products and distances of the projections estimate those of the gradients: with
    :math:`\hat g, \hat h` the projections of g and h, the mean of
    :math:`\langle \hat g, \hat h \rangle` over R is :math:`\langle g, h \rangle`, and its variance
    is at most :math:`(\lVert g \rVert^2 \lVert h \rVert^2 + \langle g, h \rangle^2) / \text{dim}`.
    Neither J nor R is ever held. R depends on the seed and on the names and sizes of the
    parameters only, so that projections from different batches, processes and devices can be
    compared. It costs about as much as :func:`~lightning_jd.gramian`, and four additions per
    parameter and loss.

    Args:
        losses: A 1-D tensor (one loss per instance), a 2-D tensor (instance and task), a list of
            scalars or a dict of named scalars.
        params: A module, or (name, tensor) pairs; tensors alone are named by their position.
        dim: The number of dimensions. A multiple of four gives the least variance in the fourth
            moment: there are four nonzero numbers per row of R then, else two or one.
        seed: Another seed is another R.

    Returns:
        Shape (m, dim), float64 if a loss or a parameter is, else float32.

    Raises:
        ArgumentError: If ``dim`` is less than 1.
        ShapeError: If there is one loss for the whole batch.
        GraphError: If no loss depends on a parameter, or autograd cannot see a part of the model.
        SetupError: If parameters are in pieces on several processes (FSDP2).

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(1000, 1)
        >>> losses = model(torch.ones(3, 1000)).flatten()  # three equal gradients
        >>> project(losses, model, dim=64).shape
        torch.Size([3, 64])

    References:
        Kane and Nelson, *Sparser Johnson-Lindenstrauss Transforms*, J. ACM 2014.
    """
    if isinstance(dim, bool) or not isinstance(dim, int) or dim < 1:
        raise ArgumentError(f"`dim` must be a positive integer, got {dim!r}.")
    named = whole_parameters_of(params)
    tape = Tape(Objectives.of(losses).each(), named, memory="low")
    total = tape.extract(Projections(dim, seed, [name for name, _ in named])).total
    assert total is not None
    return total.to(tape.like())


class Half(NamedTuple):
    """The rows of one graph, unexpanded; the graph itself is not needed any more.

    Attributes:
        parts: Contributions by parameter.
        like: An empty tensor of the type of the Gramian.
        m: The number of rows.
    """

    parts: dict[int, list[Contribution]]
    like: Tensor
    m: int

    @classmethod
    def of(cls, tape: Tape) -> Half:
        """Those of a tape."""
        return cls(tape.extract(Parts()).found, tape.like(), tape.objectives.m)


def cross(here: Half, there: Half) -> Tensor:
    """The block J Kᵀ of two sets of losses of the same parameters, shape (m of J, m of K)."""
    wide = here.like if here.like.dtype == torch.float64 else there.like
    total = wide.new_zeros(here.m, there.m)
    with torch.no_grad():
        for k in here.parts.keys() & there.parts.keys():
            for one, other in _pairs(here.parts[k], there.parts[k]):
                total += one.cross(other).to(total)
    return total


def _pairs(
    first: Sequence[Contribution], second: Sequence[Contribution]
) -> list[tuple[Contribution, Contribution]]:
    """Contributions to one parameter whose products add up to the block."""
    places = [[_place(part.placements[0]) for part in parts] for parts in (first, second)]
    if len(set(places[0])) == len(first) and sorted(places[0]) == sorted(places[1]):
        of = dict(zip(places[1], second, strict=True))  # each has entries of its own
        return [(part, of[place]) for part, place in zip(first, places[0], strict=True)]
    return [(merge(first), merge(second))]


def _place(placement: Placement) -> bytes:
    """The entries of the parameter, as bytes; none stand for all entries."""
    return b"" if placement.where is None else np.sort(placement.where).tobytes()

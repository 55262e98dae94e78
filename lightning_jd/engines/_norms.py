"""The norms of the gradients of the losses, in one call."""

from __future__ import annotations

from collections.abc import Hashable
from typing import overload

from torch import Tensor

from lightning_jd.engines._objectives import Losses, Objectives
from lightning_jd.engines._parameters import (
    Groups,
    Parameters,
    split_into_groups,
    whole_parameters_of,
)
from lightning_jd.engines.tape import SquaredNorms, Tape


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

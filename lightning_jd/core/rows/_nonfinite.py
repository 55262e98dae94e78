"""Objectives whose loss or gradient is NaN or infinite: leave them out, or say which they are."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor

from lightning_jd.engines import Objectives
from lightning_jd.errors import NonFiniteError


def without(objectives: Objectives, names: Collection[str]) -> Objectives | None:
    """The objectives that are not named; ``None`` if none is left.

    Example:
        >>> import torch
        >>> objectives = Objectives.of(torch.ones(3, requires_grad=True) * 2)
        >>> without(objectives, ["1"]).names
        ('0', '2')
    """
    kept = [i for i, name in enumerate(objectives.names) if name not in names]
    if not kept:
        return None
    remaining = tuple(objectives.names[i] for i in kept)
    known = None if objectives.known is None else objectives.known[kept]
    if isinstance(objectives.losses, Tensor):
        # A matrix with holes is no matrix: its entries become a list of rows.
        kind = "instances" if objectives.kind == "instances_tasks" else objectives.kind
        losses = objectives.losses.reshape(-1)[kept]
        return Objectives(remaining, kind, losses, objectives.total, known)
    terms = tuple(objectives.losses[i] for i in kept)
    return Objectives(remaining, objectives.kind, terms, objectives.total, known)


def nonfinite_error(what: str, names: Collection[str]) -> NonFiniteError:
    """The error for accumulated rows.

    Example:
        >>> str(nonfinite_error("Losses", ["depth"])).split(".")[0]
        "Losses must be finite, got NaN or infinity in 'depth' of the accumulated batch"
    """
    shown = ", ".join(map(repr, [*names][:10])) + (", ..." if len(names) > 10 else "")
    return NonFiniteError(
        f"{what} must be finite, got NaN or infinity in {shown} of the accumulated batch. Look at "
        "the inputs of these objectives, lower the learning rate, or set nonfinite='skip'."
    )

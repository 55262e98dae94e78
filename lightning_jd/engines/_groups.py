"""One aggregation per group of parameters, for instance per layer."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Literal

from lightning_jd.engines._parameters import NamedParameters
from lightning_jd.errors import ArgumentError

#: One aggregation for all, one per module, or one per value of a function of the name.
Groups = Literal["layer"] | Callable[[str], Hashable] | None


def split_into_groups(named: NamedParameters, groups: Groups) -> dict[Hashable, NamedParameters]:
    """Split the parameters into groups that are aggregated independently of one another.

    Args:
        named: The parameters.
        groups: ``None`` for one group; ``"layer"`` for one group per module (the name without its
            last part); or a function from the name of a parameter to the name of its group.

    Raises:
        ArgumentError: If ``groups`` is something else.

    Example:
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        >>> split = split_into_groups(list(model.named_parameters()), "layer")
        >>> {group: [name for name, _ in members] for group, members in split.items()}
        {'0': ['0.weight', '0.bias'], '1': ['1.weight', '1.bias']}
    """
    if groups is None:
        return {None: named} if named else {}
    if groups == "layer":
        groups = _layer
    if not callable(groups):
        raise ArgumentError(
            f"`groups` must be None, 'layer' or a function of the name, got {groups!r}."
        )
    split: dict[Hashable, NamedParameters] = {}
    for name, tensor in named:
        split.setdefault(groups(name), []).append((name, tensor))
    return split


def _layer(name: str) -> str:
    return name.rpartition(".")[0]

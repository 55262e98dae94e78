"""The parameters of one step: names, columns, and which of them are aggregated together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lightning_jd.engines._graph import tasks_reaching
from lightning_jd.engines._objectives import Objectives
from lightning_jd.errors import ArgumentError, GraphError, SetupError

NamedParameters = list[tuple[str, Tensor]]
#: What a user may hand over: a module, tensors, (name, tensor) pairs, or a dict of named tensors.
Parameters = (
    nn.Module | Tensor | Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Mapping[str, Tensor]
)
#: "all", "shared", a name pattern or several, or a function of name and parameter.
Select = str | Sequence[str] | Callable[[str, Tensor], bool]
#: One aggregation for all, one per module, or one per value of a function of the name.
Groups = Literal["layer"] | Callable[[str], Hashable] | None


def named_parameters_of(params: Parameters) -> NamedParameters:
    """List the parameters with a name each, without those that require no gradient.

    A tensor that comes twice (tied weights) is listed once, under its first name.

    Args:
        params: A module, an iterable of tensors (which are named by position), an iterable of
            (name, tensor) pairs, or a dict.

    Raises:
        GraphError: If a tensor is no leaf, or none requires a gradient.
        ArgumentError: If two tensors have the same name, or an entry is no tensor.

    Example:
        >>> [name for name, _ in named_parameters_of(nn.Linear(2, 1))]
        ['weight', 'bias']
    """
    pairs = [*params.named_parameters()] if isinstance(params, nn.Module) else _pairs(params)
    named: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in pairs:
        if not isinstance(tensor, Tensor):
            raise ArgumentError(
                f"`model` must be a module or hold tensors, got {type(tensor).__name__} as {name!r}"
                ". Wrap several modules in `nn.ModuleList`."
            )
        if not tensor.requires_grad or id(tensor) in seen:
            continue
        if not tensor.is_leaf:
            raise GraphError(
                f"`params` must be leaves of the graph, got {name!r} as the result of "
                f"{tensor.grad_fn.name() if tensor.grad_fn else 'an operation'}. "
                "Pass the parameters that it is computed from."
            )
        if name in named:
            raise ArgumentError(
                f"`params` must have distinct names, got {name!r} for two tensors. "
                "Pass one module that contains both, or plain tensors."
            )
        seen.add(id(tensor))
        named[name] = tensor
    if not named:
        raise GraphError("`params` must hold a tensor that requires a gradient, got none.")
    return list(named.items())


def whole_parameters_of(params: Parameters) -> NamedParameters:
    """The same, for what works on whole parameters only.

    Raises:
        SetupError: If a parameter is in pieces on several processes.
    """
    named = named_parameters_of(params)
    if pieces := [name for name, tensor in named if type(tensor).__name__ == "DTensor"]:
        raise SetupError(
            f"Parameters must be whole on this process, got {pieces[0]!r} in pieces (FSDP2). Use "
            "`lightning_jd.backward` or the callback there, or DistributedDataParallel here."
        )
    return named


def _pairs(params: object) -> list[tuple[str, Any]]:
    if isinstance(params, Mapping):
        return [(str(name), tensor) for name, tensor in params.items()]
    if isinstance(params, Tensor):  # iterating over it would give its rows, which are no leaves
        return [("0", params)]
    if not isinstance(params, Iterable):
        raise ArgumentError(
            "`params` must be a module, tensors or (name, tensor) pairs, got "
            f"{type(params).__name__}."
        )
    return [
        entry if isinstance(entry, tuple) else (str(position), entry)
        for position, entry in enumerate(params)
    ]


def column_count(parameter: Tensor) -> int:
    """How many columns of the Jacobian a parameter has.

    They are the real numbers that it consists of. A complex entry is two columns, its real and its
    imaginary part: gradients of PyTorch are the derivatives by these two, so that inner products
    over columns are real and exact.
    """
    return parameter.numel() * (2 if parameter.is_complex() else 1)


def to_columns(gradient: Tensor) -> Tensor:
    """A gradient as a vector of real numbers, shape (columns,)."""
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    if dense.is_complex():
        dense = torch.view_as_real(dense.resolve_conj())
    return dense.reshape(-1)


def from_columns(columns: Tensor, parameter: Tensor) -> Tensor:
    """A vector of real numbers as a gradient, in shape, type and device of the parameter.

    Example:
        >>> from_columns(torch.tensor([1.0, 2.0]), torch.zeros(1, dtype=torch.complex64))
        tensor([1.+2.j])
    """
    if parameter.is_complex():
        columns = torch.complex(*columns.reshape(*parameter.shape, 2).unbind(-1))
    return columns.reshape(parameter.shape).to(parameter)


@dataclass(frozen=True)
class Selection:
    """Which parameters are aggregated, and which keep their plain gradient.

    Attributes:
        selected: The parameters whose rows enter the Gramian.
        plain: The others: they get the gradient of the sum over tasks of the mean over instances.
    """

    selected: NamedParameters
    plain: NamedParameters


def select(objectives: Objectives, named: NamedParameters, which: Select = "all") -> Selection:
    """Split the parameters into those that are aggregated and those that are not.

    Args:
        objectives: The losses; only ``"shared"`` depends on them.
        named: The parameters.
        which: ``"all"``; ``"shared"``, the parameters that more than one task reaches, so that
            heads keep the gradient of their own loss; a name pattern such as ``"encoder.*"`` or a
            list of patterns; or a function of name and parameter.

    Raises:
        ArgumentError: If nothing matches, or ``which`` is ``"shared"`` and losses are not tasks.
    """
    if which == "all":
        return Selection(list(named), [])
    if which == "shared":
        return _shared(objectives, named)
    check_select(which)
    if callable(which):
        chosen = [bool(which(name, tensor)) for name, tensor in named]
    else:
        patterns = [which] if isinstance(which, str) else list(which)
        chosen = [any(fnmatchcase(name, p) for p in patterns) for name, _ in named]
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name, _ in named):
                raise ArgumentError(_no_match(f"the pattern {pattern!r} matches none", named))
    if not any(chosen):
        raise ArgumentError(_no_match("the function accepts none", named))
    pairs = list(zip(named, chosen, strict=True))
    return Selection([p for p, yes in pairs if yes], [p for p, yes in pairs if not yes])


def check_select(which: object) -> None:
    """Raise unless it is something that :func:`select` takes.

    Raises:
        ArgumentError: If it is not.
    """
    patterns = [which] if isinstance(which, str) else which
    if callable(which) or (
        isinstance(patterns, Sequence) and all(isinstance(each, str) for each in patterns)
    ):
        return
    raise ArgumentError(
        "`select` (in Lightning: `params`) must be 'all', 'shared', a name pattern, a list of "
        f"patterns or a function, got {which!r}."
    )


def _no_match(reason: str, named: NamedParameters) -> str:
    shown = ", ".join(name for name, _ in named[:8]) + (", ..." if len(named) > 8 else "")
    return (
        f"`select` (in Lightning: `params`) must choose at least one parameter, but {reason} of "
        f"{shown}. Besides patterns there are 'all' and 'shared'."
    )


def _shared(objectives: Objectives, named: NamedParameters) -> Selection:
    reaching = tasks_reaching(objectives)
    counts = [reaching.get(id(tensor), 0).bit_count() for _, tensor in named]
    pairs = list(zip(named, counts, strict=True))
    return Selection([p for p, n in pairs if n > 1], [p for p, n in pairs if n == 1])


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

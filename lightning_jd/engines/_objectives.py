"""The losses of one step in one form, whatever form the user's code gave them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from lightning_jd.errors import ArgumentError, GraphError, ShapeError

#: What a user may hand over: a vector, a matrix [b, k], scalars in a list, or named scalars.
Losses = Tensor | Sequence[Tensor | None] | Mapping[str, Tensor | None]
Kind = Literal["instances", "instances_tasks", "tasks", "ranks"]

#: The name of a loss that comes without one.
_ONE = "loss"
#: What autograd differentiates: a tensor, or a place in the graph.
Output = Tensor | GradientEdge


def is_one(scale: float | Tensor) -> bool:
    """Whether a factor on losses is known to change nothing."""
    return isinstance(scale, (int, float)) and scale == 1


@dataclass(frozen=True)
class Term:
    """A scalar of which only the place in the graph is known, times a factor.

    A sum does not keep its terms, but their places are below it, and all that is differentiated is
    there. The value of a term is gone.

    Attributes:
        edge: Where the scalar was computed: a node, and the number of its output.
        factor: What it is multiplied by, a scalar.
    """

    edge: GradientEdge
    factor: Tensor

    @property
    def dtype(self) -> torch.dtype:
        """The type of the scalar."""
        return self.factor.dtype

    @property
    def device(self) -> torch.device:
        """The device of the scalar."""
        return self.factor.device


@dataclass(frozen=True)
class Objectives:
    """The m objectives of one step: the rows of the Jacobian.

    Build it with :meth:`of`. Losses that come in a dict or a list stay separate tensors, because
    stacking them would hide which of them reaches which parameter.

    Attributes:
        names: One name per objective: the key of the dict, the position in the list or tensor, or
            ``"instance/task"`` in a matrix of losses.
        kind: ``"instances"``, ``"tasks"``, ``"instances_tasks"`` (row-major: b, then k), or
            ``"ranks"``, the loss of the whole share that one process has of the data.
        losses: The tensor of losses as given, or a tuple of scalars (or of terms of a sum).
        total: The scalar that was split into these objectives, where that has happened.
        known: Their values, shape (m,), if the losses do not hold them.
        m: The number of objectives.
        dtype: The floating-point type of the losses.
        device: The device of the losses.

    Example:
        >>> x = torch.ones(2, requires_grad=True)
        >>> objectives = Objectives.of({"depth": x[0], "normals": None, "edges": x.sum()})
        >>> objectives.kind, objectives.names, objectives.m
        ('tasks', ('depth', 'edges'), 2)
        >>> Objectives.of(x * x).kind
        'instances'
    """

    names: tuple[str, ...]
    kind: Kind
    losses: Tensor | tuple[Tensor | Term, ...]
    total: Tensor | None = None
    known: Tensor | None = None
    m: int = field(init=False)
    dtype: torch.dtype = field(init=False)
    device: torch.device = field(init=False)

    def __post_init__(self) -> None:
        first = self.losses if isinstance(self.losses, Tensor) else self.losses[0]
        object.__setattr__(self, "m", len(self.names))
        object.__setattr__(self, "dtype", first.dtype)
        object.__setattr__(self, "device", first.device)

    @classmethod
    def of(
        cls, losses: Losses | Objectives, rows: Literal["instances", "tasks"] | None = None
    ) -> Objectives:
        """Read the losses and check them, without a host synchronisation.

        Args:
            losses: A 1-D tensor (one objective per instance), a 2-D tensor of shape (b, k) (per
                instance and task), a list or tuple of scalars, or a dict of named scalars (tasks).
                Entries that are ``None`` are tasks without a loss in this step and are dropped. A
                0-dimensional tensor is one task. Objectives are returned as they are.
            rows: Read a vector of losses as ``"tasks"``, or a list as ``"instances"``, instead of
                by its type.

        Raises:
            ShapeError: If there is no loss, a loss has too many dimensions, or an integer type.
            ArgumentError: If two names are equal, or devices or types of the losses differ.
            GraphError: If a loss does not require a gradient.
        """
        if isinstance(losses, Objectives):
            return losses
        names: tuple[str, ...]
        kept: Tensor | tuple[Tensor, ...]
        kind: Kind
        if isinstance(losses, Tensor) and losses.ndim > 0:
            names, kept, kind = _read_tensor(losses)
        else:
            names, kept, kind = _read_scalars(losses)
        if rows is not None and kind != "instances_tasks":
            kind = rows
        return cls(names, kind, kept)

    @property
    def outputs(self) -> tuple[Output, ...]:
        """What to differentiate: the scalars, or the one tensor that holds all losses."""
        if isinstance(self.losses, Tensor):
            return (self.losses,)
        return tuple(loss.edge if isinstance(loss, Term) else loss for loss in self.losses)

    def cotangents(self, weights: Tensor) -> tuple[Tensor, ...]:
        """``grad_outputs`` of :attr:`outputs` that make autograd return the gradient of w · losses.

        Args:
            weights: w, shape (m,).
        """
        weights = weights.to(self.device, self.dtype)
        if isinstance(self.losses, Tensor):
            return (weights.view(self.losses.shape),)
        return tuple(
            weight * loss.factor if isinstance(loss, Term) else weight
            for loss, weight in zip(self.losses, weights.unbind(), strict=True)
        )

    def row(self, i: int) -> tuple[Output, Tensor]:
        """The output and the ``grad_outputs`` that make autograd return the gradient of loss i."""
        if isinstance(self.losses, Tensor):
            chosen = torch.zeros(self.m, dtype=self.dtype, device=self.device)
            chosen[i] = 1
            return self.losses, chosen.view(self.losses.shape)
        loss = self.losses[i]
        if isinstance(loss, Term):
            return loss.edge, loss.factor
        return loss, torch.ones_like(loss)

    def each(self) -> Objectives:
        """The same, for what must have a loss for each example.

        Raises:
            ShapeError: If there is one loss without a dimension.
        """
        if self.kind == "tasks" and self.names == (_ONE,):
            raise ShapeError(
                "`losses` must have one entry per example or task, got one scalar. Take the loss "
                "without its mean (reduction='none'), or pass [loss] for a single task."
            )
        return self

    @property
    def has_values(self) -> bool:
        """Whether the value of each objective is known."""
        return self.total is None or self.known is not None

    def values(self) -> Tensor:
        """The losses as one detached vector of shape (m,).

        If a scalar was split, and its parts are not known, each of them stands for the whole.
        """
        return self._values

    @cached_property
    def _values(self) -> Tensor:
        # Results are plain tensors, also of losses of a subclass that adds labels or units.
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            if self.known is not None:
                return self.known.detach()
            if self.total is not None:
                return self.total.detach().expand(self.m)
            if isinstance(self.losses, Tensor):
                detached = self.losses.detach()
                return detached if detached.ndim == 1 else detached.reshape(-1)
            return torch.stack([loss for loss in self.losses if isinstance(loss, Tensor)])

    def shown(self) -> Tensor:
        """One number for the log: the scalar that was split, or else the mean of all losses."""
        if self.total is None:
            return self.values().mean()
        with torch._C.DisableTorchFunctionSubclass():
            return self.total.detach()

    def nonfinite(self) -> tuple[str, ...]:
        """The names of the losses that are NaN or infinite (one host synchronisation)."""
        finite = torch.isfinite(self.values())
        if bool(finite.all()):
            return ()
        return tuple(
            name for name, fine in zip(self.names, finite.tolist(), strict=True) if not fine
        )


def _read_tensor(losses: Tensor) -> tuple[tuple[str, ...], Tensor, Kind]:
    if losses.ndim > 2:
        raise ShapeError(
            "`losses` must have shape (m,) or (b, k), instance and task, got "
            f"{tuple(losses.shape)}. Average over the other dimensions first."
        )
    if losses.numel() == 0:
        raise ShapeError(
            f"`losses` must hold at least one loss, got shape {tuple(losses.shape)}. "
            "Skip empty batches."
        )
    _check_differentiable("losses", losses)
    if losses.ndim == 1:
        return tuple(map(str, range(len(losses)))), losses, "instances"
    b, k = losses.shape
    return tuple(f"{i}/{j}" for i in range(b) for j in range(k)), losses, "instances_tasks"


def _read_scalars(losses: object) -> tuple[tuple[str, ...], tuple[Tensor, ...], Kind]:
    present = {}
    for name, loss in _named(losses):
        if loss is None:
            continue
        if name in present:
            raise ArgumentError(f"`losses` must have distinct names, got {name!r} twice.")
        present[name] = _scalar(f"losses[{name!r}]", loss)
    if not present:
        raise ShapeError("`losses` must hold at least one loss, got none. Skip such a step.")
    for aspect in ("device", "dtype"):
        if len(found := {getattr(loss, aspect) for loss in present.values()}) > 1:
            listed = ", ".join(sorted(map(str, found)))
            raise ArgumentError(
                f"`losses` must all have the same {aspect}, got {listed}. "
                "Convert them with `.to(...)`."
            )
    return tuple(present), tuple(present.values()), "tasks"


def _named(losses: object) -> Iterable[tuple[str, object]]:
    if isinstance(losses, Tensor):
        return [(_ONE, losses)]
    if isinstance(losses, Mapping):
        return [(str(name), loss) for name, loss in losses.items()]
    if isinstance(losses, Sequence) and not isinstance(losses, str):
        return [(str(i), loss) for i, loss in enumerate(losses)]
    raise ArgumentError(
        "`losses` must be a tensor, a list of scalars or a dict of named scalars, got "
        f"{type(losses).__name__}."
    )


def _scalar(name: str, loss: object) -> Tensor:
    if not isinstance(loss, Tensor):
        raise ArgumentError(
            f"`{name}` must be a tensor, got {type(loss).__name__}. A number has no gradient: "
            "leave it out, or use None for a task without a loss in this batch."
        )
    if loss.ndim > 0:
        raise ShapeError(
            f"`{name}` must be a scalar, got shape {tuple(loss.shape)}. Reduce it with `.mean()`, "
            "or return one tensor of losses: (m,) for instances, (b, k) for instances and tasks."
        )
    _check_differentiable(name, loss)
    return loss


def _check_differentiable(name: str, loss: Tensor) -> None:
    if not loss.is_floating_point():
        raise ShapeError(f"`{name}` must be floating-point, got {loss.dtype}.")
    if not loss.requires_grad:
        raise GraphError(
            f"`{name}` must require a gradient, got a tensor without a graph. Compute it outside "
            "of `torch.no_grad()` and from parameters that require a gradient, or leave it out."
        )

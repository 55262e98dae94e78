"""The arguments of the tape in one step."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.utils.weak import WeakIdRef

from lightning_jd.engines._objectives import Objectives, is_one
from lightning_jd.engines._parameters import to_columns
from lightning_jd.engines.tape.graph import gradients_of
from lightning_jd.engines.tape.run._ledger import Ledger
from lightning_jd.errors import ArgumentError, GraphError

Check = Literal["auto", "raise", "always", "off"]


@dataclass(frozen=True)
class TapeOptions:
    """The options of a :class:`~lightning_jd.engines.tape.Tape`, which documents them.

    Raises:
        ArgumentError: If one has an invalid value.
    """

    memory: Literal["fast", "low"] = "fast"
    check: Check = "auto"
    check_every: int = 1000

    def __post_init__(self) -> None:
        if self.memory not in ("fast", "low"):
            raise ArgumentError(f"`memory` must be 'fast' or 'low', got {self.memory!r}.")
        if self.check not in get_args(Check):
            raise ArgumentError(
                f"`check` must be 'auto', 'raise', 'always' or 'off', got {self.check!r}."
            )
        every = self.check_every
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ArgumentError(
                f"`check_every` must be a number of steps, at least 1, got {every!r}."
            )


class Request:
    """The arguments of a :class:`~lightning_jd.engines.tape.Tape`, and what follows from them.

    Attributes:
        tensors: The parameters.
        device: That of the losses.
        dtype: The type to compute in.
        instances: The losses of several instances; ``None`` if the rows are tasks, or one instance.
        types: Types and devices that the graph does not show.
        model: The same for steps that have the same parameters.
    """

    def __init__(
        self,
        objectives: Objectives,
        named: list[tuple[str, Tensor]],
        scale: float | Tensor,
        options: TapeOptions,
        *,
        retain_graph: bool,
    ) -> None:
        self.objectives, self.named, self.scale = objectives, named, scale
        self.options, self.retain_graph = options, retain_graph
        self.tensors = [tensor for _, tensor in named]
        types, losses = [tensor.dtype for tensor in self.tensors], objectives.losses
        self.device, own = objectives.device, objectives.dtype
        real = {dtype.to_real() for dtype in {own, *types}}
        self.dtype = torch.float64 if torch.float64 in real else torch.float32
        self.instances: Tensor | None = None
        if isinstance(losses, Tensor) and objectives.kind != "tasks" and losses.shape[0] > 1:
            self.instances = losses
        #: The number of owners of gradients; tasks have one, which owns everything.
        self.owners = 1 if self.instances is None else len(self.instances)
        self.types: Hashable = tuple(types), own, self.device
        self.model: Hashable = (
            *(WeakIdRef(self.tensors[0]), WeakIdRef(self.tensors[-1])),
            self.owners == 1,
        )

    def empty_ledger(
        self,
        kind: Callable[..., Ledger] = Ledger,
        **options: bool,
    ) -> Ledger:
        """A Gramian of zeros; options are those of :class:`Ledger`."""
        return kind(
            self.objectives.m,
            self.dtype,
            self.objectives.device,
            room=sum(tensor.numel() for tensor in self.tensors),
            lean=self.options.memory == "low",
            **options,
        )

    def unscaled(self, gradient: Tensor, scale: float | Tensor) -> Tensor:
        """A gradient in the type to compute in, without the factor on the losses."""
        cast = gradient.to(self.dtype.to_complex() if gradient.is_complex() else self.dtype)
        return cast if is_one(scale) else cast / scale

    def ordinary_gradients(
        self, weights: Tensor, chosen: Sequence[int], *, retain_graph: bool = True
    ) -> dict[int, Tensor]:
        """``Jᵀ w`` of some parameters, by autograd."""
        gradients = gradients_of(
            self.objectives.outputs,
            self.objectives.cotangents(weights * self.scale),
            [self.tensors[k] for k in chosen],
            retain_graph=retain_graph,
        )
        is_scaled = not is_one(self.scale)
        return {
            k: to_columns(gradient) / self.scale if is_scaled else to_columns(gradient)
            for k, gradient in zip(chosen, gradients, strict=True)
            if gradient is not None
        }

    def nothing_reached(self) -> GraphError:
        """The error of losses that depend on no parameter."""
        return GraphError(
            "The losses must depend on a parameter, got none that they reach: "
            f"{', '.join(repr(name) for name, _ in self.named[:5])}"
            f"{', ...' if len(self.named) > 5 else ''} are not in their graph. Look for "
            "`detach()`, `torch.no_grad()` or a frozen module on the way."
        )

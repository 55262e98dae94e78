"""What is asked of the tape in one step."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from lightning_jd.engines._columns import to_columns
from lightning_jd.engines._objectives import Objectives
from lightning_jd.engines.tape.graph import gradients_of
from lightning_jd.engines.tape.run._gramian_sum import Ledger
from lightning_jd.errors import GraphError


@dataclass(frozen=True)
class Request:
    """The arguments of a :class:`~lightning_jd.engines.tape.Tape`, and what follows from them."""

    objectives: Objectives
    named: list[tuple[str, Tensor]]
    scale: float | Tensor
    memory: Literal["fast", "low"]
    check: Literal["auto", "raise", "always", "off"]
    check_every: int
    retain_graph: bool

    @cached_property
    def tensors(self) -> list[Tensor]:
        """The parameters."""
        return [tensor for _, tensor in self.named]

    @cached_property
    def dtype(self) -> torch.dtype:
        """The type to compute in."""
        types = {tensor.dtype.to_real() for tensor in self.tensors} | {self.objectives.dtype}
        return torch.float64 if torch.float64 in types else torch.float32

    @cached_property
    def instances(self) -> Tensor | None:
        """The losses of several instances; ``None`` if the rows are tasks, or one instance."""
        losses = self.objectives.losses
        is_tasks = not isinstance(losses, Tensor) or self.objectives.kind == "tasks"
        return None if is_tasks or len(losses) == 1 else losses  # type: ignore[return-value]

    @cached_property
    def key(self) -> Hashable:
        """What a program depends on that the graph does not show."""
        scale = "tensor" if isinstance(self.scale, Tensor) else self.scale
        types = tuple([tensor.dtype for tensor in self.tensors])
        return scale, types, self.objectives.dtype, self.objectives.device

    def empty_ledger(
        self,
        kind: type[Ledger] = Ledger,
        *,
        keeps: bool = True,
        notes: bool = False,
        once: bool = False,
    ) -> Ledger:
        """A Gramian of zeros.

        Args:
            kind: A ledger that multiplies, or one that collects.
            keeps: Whether contributions are kept for the gradients.
            notes: Whether the share of each contribution is noted.
            once: Whether gradients are asked for once only.
        """
        return kind(
            self.objectives.m,
            self.dtype,
            self.objectives.device,
            room=sum(tensor.numel() for tensor in self.tensors),
            keeps=keeps,
            lean=self.memory == "low",
            notes=notes,
            once=once,
        )

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
        is_scaled = not (isinstance(self.scale, (int, float)) and self.scale == 1)
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

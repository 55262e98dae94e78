"""Rows of one process whose graph is alive: nothing of the size of the Jacobian is kept."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.core.processes._delivery import Delivery, Gradients
from lightning_jd.core.processes._layout import Layout
from lightning_jd.core.processes._pool import ALONE
from lightning_jd.core.rows._base import Nonfinite, Rows
from lightning_jd.core.rows._features import features_gramian
from lightning_jd.core.rows._kept import KeptRows
from lightning_jd.engines import (
    NamedParameters,
    Objectives,
    Select,
    Tape,
    check_not_freed,
    holds_hooks,
    jacobian_with_reasons,
    leaves_reached,
    mark_as_freed,
    select,
    slow_parameters,
)


class LiveRows(Rows):
    """Differentiates the losses of one micro-batch when their rows are asked for.

    Args:
        named: The parameters.
        select: Which of them are aggregated, see :func:`lightning_jd.engines.select`.
        nonfinite: ``"raise"``, or ``"skip"`` to leave out objectives whose loss or gradient is NaN
            or infinite.
        memory: ``"fast"`` keeps activation gradients; ``"low"`` keeps less, and ends with an
            ordinary backward pass where that would still be much.
        retain_graph: Whether the graph of the losses is kept; otherwise it may be freed.
    """

    def __init__(
        self,
        named: NamedParameters,
        *,
        select: Select = "all",
        nonfinite: Nonfinite = "raise",
        memory: Literal["fast", "low"] = "fast",
        retain_graph: bool = False,
    ) -> None:
        super().__init__(named, ALONE, can_skip=True)
        self._which, self._nonfinite = select, nonfinite
        self.skips = nonfinite == "skip"
        self._memory, self._frees = memory, not retain_graph
        self._retain_graph = retain_graph or nonfinite == "skip"  # looks again what is not finite
        self._tapes: dict[str, Tape] = {}  # by the first parameter
        self._objectives: Objectives
        self._scale: float | Tensor = 1.0
        self._gramian_is_next = False

    @override
    def add(self, objectives: Objectives, *, scale: float | Tensor = 1.0) -> None:
        check_not_freed(objectives)
        self._objectives, self._scale = objectives, scale
        self.has_values = objectives.has_values

    @override
    def agree(self, *, exactly: bool, gramian_is_next: bool) -> None:
        self._gramian_is_next = gramian_is_next
        chosen = select(self._objectives, self.named, self._which)
        self.layout = Layout.alone(self._objectives)
        self.selected, self.plain = chosen.selected, chosen.plain
        if exactly:
            reached = leaves_reached(self._objectives)
            self.selected = [pair for pair in self.selected if id(pair[1]) in reached]

    @override
    def values(self, *, wanted: bool) -> Tensor:
        return self._objectives.values()

    @override
    def gramian(self, named: NamedParameters) -> Tensor:
        return self._tape(named).gramian()

    def _tape(self, named: NamedParameters) -> Tape:
        """The tape for some parameters, until their gradients are asked for."""
        tape = self._tapes.get(named[0][0])
        if tape is None:
            # All groups differentiate the same graph.
            keep = self._retain_graph or len(named) < len(self.selected) or self._is_clipped
            tape = Tape(
                self._objectives, named, scale=self._scale, memory=self._memory, retain_graph=keep
            )
            self._tapes[named[0][0]] = tape
        return tape

    @cached_property
    def _is_clipped(self) -> bool:
        """Whether hooks may change what tasks get in plain training."""
        is_known = isinstance(self._objectives.losses, Tensor)  # to the tape
        return self.as_plain and not is_known and holds_hooks(self._objectives)

    @override
    def plain_gradients(self, delivery: Delivery) -> Gradients:
        # The gradient of the sum of the tasks is what a loop over them adds up.
        if self._gramian_is_next and self.selected and self.layout.plain_weight == 1:
            tensors = [tensor for _, tensor in self.plain]
            found = self._tape(self.selected).gradients_beside(tensors)
            if found is not None:
                pairs = zip(self.plain, found, strict=True)
                return {name: gradient for (name, _), gradient in pairs if gradient is not None}
        return super().plain_gradients(delivery)

    @override
    def jacobian(self, named: NamedParameters) -> Tensor:
        J, slow = jacobian_with_reasons(self._objectives, named, scale=self._scale)
        self.paths |= {name: "jacobian" for name, _ in named}
        self.slow |= slow
        return J

    @override
    def features_gramian(self, features: str | Tensor | None) -> Tensor:
        return features_gramian(self._objectives, self._scale, features, self.named)

    @override
    def combine(self, named: NamedParameters, weights: Tensor, delivery: Delivery) -> Gradients:
        tape = self._tapes.pop(named[0][0], None)  # and let go of it: the next one needs memory too
        if tape is not None:
            self.paths |= tape.paths
            self.slow |= slow_parameters(tape)
        if tape is None or (self.as_plain and (tape.is_hooked or self._is_clipped)):
            keep = self._retain_graph or named is self.plain or bool(self._tapes)  # come first
            return ordinary_gradients(self._objectives, named, weights, self._scale, keep)
        found = tape.gradients(weights)
        return {name: g for (name, _), g in zip(named, found, strict=True) if g is not None}

    @override
    def delivered(self, own: Gradients, complete: Gradients, delivery: Delivery) -> Gradients:
        if self._frees:
            mark_as_freed(self._objectives)
        return own | complete

    @override
    def combined(self, weights: Tensor) -> Tensor | None:
        losses = self._objectives.losses
        if self.plain:
            return None
        with torch.enable_grad():
            if isinstance(losses, Tensor):
                vector = losses.reshape(-1)
            elif all(isinstance(loss, Tensor) for loss in losses):
                vector = torch.stack(losses)  # type: ignore[arg-type]  # they are tensors
            else:  # only their places in the graph are known
                return None
            return vector @ weights.to(vector)

    @override
    def finite_only(self, finite: Sequence[bool]) -> Rows:
        if self._nonfinite == "raise":  # and the graph may be gone
            if bad := self._objectives.nonfinite():
                raise self.losses_error(bad, self._objectives.m)
            raise self.gradients_error(self._names(finite))
        # Rows that are computed together spoil one another: look at them one by one.
        kept = KeptRows(self.named, select=self._which, nonfinite="skip", pool=self.pool)
        kept.add(self._objectives, scale=self._scale)
        kept.agree(exactly=True, gramian_is_next=True)
        return kept

    @override
    def shown(self) -> Tensor:
        total = self._objectives.total
        return self._objectives.values() if total is None else total.detach()

    @override
    def like(self) -> Tensor:
        return torch.empty(0, dtype=self._objectives.dtype, device=self._objectives.device)


def ordinary_gradients(
    objectives: Objectives,
    named: NamedParameters,
    weights: Tensor,
    scale: float | Tensor,
    retain_graph: bool,
) -> Gradients:
    """The gradients of the weighted losses, by an ordinary backward pass."""
    gradients = torch.autograd.grad(
        objectives.outputs,  # type: ignore[arg-type]  # tensors and edges may be mixed
        [tensor for _, tensor in named],
        objectives.cotangents(weights * scale),
        retain_graph=retain_graph,
        allow_unused=True,
    )
    is_one = isinstance(scale, float) and scale == 1
    return {
        name: gradient if is_one else gradient / scale
        for (name, _), gradient in zip(named, gradients, strict=True)
        if gradient is not None
    }

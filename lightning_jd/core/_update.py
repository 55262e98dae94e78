"""The result of a step: gradients on their way to ``.grad``."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.weak import WeakIdRef

from lightning_jd.core._report import Report
from lightning_jd.core._surrogate import Part, surrogate, surrogate_in_parts
from lightning_jd.engines import hooks_registered, listens


@dataclass(frozen=True)
class Update:
    """Gradients on their way to ``.grad``.

    Attributes:
        parts: The parameters that some objective reaches, with their gradients, which are let go
            when they are handed over. There are several parts where gradients are reduced over
            processes: each is reduced while the next is computed.
        losses: The losses, detached, or a scalar that stands for them.
        report: How they were computed.
        combined: The weighted sum of the losses with its graph, where an ordinary backward pass of
            it is all that is left to do; there are no gradients then.
    """

    parts: list[Part]
    losses: Tensor
    report: Report
    combined: Tensor | None = None

    @property
    def params(self) -> list[Tensor]:
        """The parameters that some objective reaches."""
        return [tensor for part in self.parts for tensor in part.params]

    @property
    def gradients(self) -> list[Tensor]:
        """One per parameter; computed now, if that was still to be done."""
        return [gradient for part in self.parts for gradient in part.gradients]

    def deliver(self, retain_graph: bool = False) -> None:
        """Add the gradients to ``.grad`` of the parameters, and of no other tensor."""
        if self.combined is not None:
            torch.autograd.backward(self.combined, retain_graph=retain_graph, inputs=self.params)
        elif all(_nobody_listens(part) for part in self.parts):
            for part in self.parts:
                for tensor, gradient in zip(part.params, part.gradients, strict=True):
                    tensor.grad = gradient
                part.gradients.clear()
        else:
            self.surrogate().backward()

    def surrogate(self, value: Tensor | None = None) -> Tensor:
        """A scalar whose backward pass adds the gradients.

        Args:
            value: What it is equal to: by default the mean of the losses. If the weighted sum of
                the losses has to be differentiated, it is that.
        """
        if self.combined is not None:
            return self.combined
        value = self.losses.mean() if value is None else value
        if not self.params:  # on several processes, this one may have none
            nobody = value.new_zeros((), requires_grad=True)
            return surrogate(value, [nobody], [torch.zeros_like(nobody)])
        return surrogate_in_parts(value, self.parts)


def _nobody_listens(part: Part) -> bool:
    """Whether a backward pass would do nothing but set ``.grad``, for which it takes long.

    There is no gradient to add to, and no hook. What reduces gradients over processes has hooks
    that cannot be seen.
    """
    if dist.is_available() and dist.is_initialized():
        return False
    params, gradients = part.params, part.gradients
    if any(tensor.grad is not None for tensor in params) or _have_hooks(params):
        return False
    addresses = set()
    for tensor, gradient in zip(params, gradients, strict=True):
        if gradient.layout is not torch.strided:
            return False
        if gradient.stride() != tensor.stride():  # autograd copies it into the other layout
            return False
        addresses.add(gradient.data_ptr())
    # The gradients of both terms of a sum are one tensor, of which autograd makes two.
    return len(addresses) == len(gradients)


def _have_hooks(params: Sequence[Tensor]) -> bool:
    """Whether a hook waits for a gradient; nodes are searched only if there are new hooks."""
    if any(tensor._backward_hooks or tensor._post_accumulate_grad_hooks for tensor in params):
        return True
    model = WeakIdRef(params[0]), len(params), hooks_registered()
    if model in _without_hooks:
        return False
    if any(listens(tensor) for tensor in params):
        return True
    _without_hooks.append(model)
    return False


#: Parameters whose nodes had no hook, when so many hooks had been registered anywhere.
_without_hooks: deque[tuple[WeakIdRef, int, int]] = deque(maxlen=16)

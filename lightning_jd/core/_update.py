"""The result of a step: gradients on their way to ``.grad``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_jd.core._report import Report
from lightning_jd.core._surrogate import surrogate


@dataclass(frozen=True)
class Update:
    """Gradients that were computed but not yet added to ``.grad``.

    Attributes:
        params: The parameters that some objective reaches.
        gradients: One per parameter; the list is emptied when they are handed over.
        losses: The losses, detached, or a scalar that stands for them.
        report: How they were computed.
        combined: The weighted sum of the losses with its graph, where an ordinary backward pass of
            it is all that is left to do; there are no gradients then.
    """

    params: list[Tensor]
    gradients: list[Tensor]
    losses: Tensor
    report: Report
    combined: Tensor | None = None

    def deliver(self, retain_graph: bool = False) -> None:
        """Add the gradients to ``.grad`` of the parameters, and of no other tensor."""
        if self.combined is not None:
            torch.autograd.backward(self.combined, retain_graph=retain_graph, inputs=self.params)
        elif _nobody_listens(self.params, self.gradients):
            for tensor, gradient in zip(self.params, self.gradients, strict=True):
                tensor.grad = gradient
            self.gradients.clear()
        else:
            self.surrogate().backward()

    def surrogate(self) -> Tensor:
        """A scalar whose backward pass adds the gradients.

        It is equal to the mean of the losses, or to their weighted sum if that has to be
        differentiated.
        """
        if self.combined is not None:
            return self.combined
        value = self.losses.mean()
        if not self.params:  # on several processes, this one may have none
            nobody = value.new_zeros((), requires_grad=True)
            return surrogate(value, [nobody], [torch.zeros_like(nobody)])
        return surrogate(value, self.params, self.gradients)


def _nobody_listens(params: list[Tensor], gradients: list[Tensor]) -> bool:
    """Whether a backward pass would do nothing but set ``.grad``, for which it takes long.

    There is no gradient to add to, and no hook. What reduces gradients over processes has hooks
    that cannot be seen.
    """
    if dist.is_available() and dist.is_initialized():
        return False
    for tensor in params:
        if tensor.grad is not None or tensor._backward_hooks or tensor._post_accumulate_grad_hooks:
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

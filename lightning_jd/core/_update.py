"""The result of a step: gradients on their way to ``.grad``."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.weak import WeakIdRef
from typing_extensions import override

from lightning_jd.core._report import Report
from lightning_jd.engines import hooks_registered, listens
from lightning_jd.errors import GraphError


@dataclass(frozen=True)
class Update:
    """Gradients on their way to ``.grad``.

    Attributes:
        params: The parameters that some objective reaches.
        gradients: One per parameter. The list is emptied when they are handed over.
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
        return surrogate(value, self.params, self.gradients)


def _nobody_listens(params: Sequence[Tensor], gradients: Sequence[Tensor]) -> bool:
    """Whether a backward pass would do nothing but set ``.grad``, for which it takes long.

    There is no gradient to add to, and no hook. What reduces gradients over processes has hooks
    that cannot be seen.
    """
    if dist.is_available() and dist.is_initialized():
        return False
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


def surrogate(value: Tensor, params: Sequence[Tensor], gradients: list[Tensor]) -> Tensor:
    """Make a scalar equal to ``value`` whose gradient with respect to ``params`` is given.

    Args:
        value: What loggers and progress bars see, a scalar; it is detached.
        params: The leaf tensors.
        gradients: One per parameter. The list is emptied by the backward pass: the tensors become
            ``.grad`` themselves, where that is possible, instead of being copied.

    Returns:
        A scalar. Its backward pass adds ``gradients``, times the factor that reaches it, to
        ``.grad``. It can run once.

    Example:
        >>> x = torch.zeros(2, requires_grad=True)
        >>> loss = surrogate(torch.tensor(5.0), [x], [torch.tensor([1.0, 2.0])])
        >>> (3 * loss).backward()
        >>> x.grad
        tensor([3., 6.])
    """
    scalar: Tensor = _Surrogate.apply(  # type: ignore[no-untyped-call]  # torch types no `apply`
        value.detach(), gradients, *params
    )
    return scalar


class _Surrogate(torch.autograd.Function):
    @override
    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: list[Tensor], *params: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value.clone()

    @override
    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factor: Tensor) -> Any:
        if not ctx.gradients:
            raise GraphError(
                "The backward pass of an aggregated loss can run only once. Compute the losses "
                "again, or aggregate them again."
            )
        # Reading the factor is free on a CPU; on an accelerator the product is cheaper than a sync.
        is_one = factor.device.type == "cpu" and float(factor) == 1
        found = []
        while ctx.gradients:  # a reference left behind has AccumulateGrad copy the tensor
            gradient = ctx.gradients.pop(0)
            found.append(gradient if is_one else gradient * factor.to(gradient.device))
        return None, None, *found

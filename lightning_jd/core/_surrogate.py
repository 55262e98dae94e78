"""A scalar whose backward pass delivers gradients that are not those of its value.

Everything that listens to an ordinary backward pass (``Tensor.register_hook``, post-accumulate
hooks, the reducer of DistributedDataParallel, a GradScaler that multiplies the loss) then works as
it does in plain training, because what it sees is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

from lightning_jd.errors import GraphError


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

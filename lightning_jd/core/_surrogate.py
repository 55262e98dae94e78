"""A scalar whose backward pass delivers gradients that are not those of its value.

Everything that listens to an ordinary backward pass (``Tensor.register_hook``, post-accumulate
hooks, the reducer of DistributedDataParallel, a GradScaler that multiplies the loss) then works as
it does in plain training, because what it sees is one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

from lightning_jd.errors import GraphError


class Part:
    """The gradients of some parameters, known or still to be computed.

    Args:
        params: The leaf tensors.
        gradients: One per parameter, or a function that computes them when they are wanted.
    """

    def __init__(
        self, params: Sequence[Tensor], gradients: list[Tensor] | Callable[[], list[Tensor]]
    ) -> None:
        self.params = params
        self._gradients = gradients

    @property
    def gradients(self) -> list[Tensor]:
        """One per parameter; none any more when they have been handed over."""
        if not isinstance(self._gradients, list):
            self._gradients = self._gradients()
        return self._gradients


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
    return surrogate_in_parts(value, [Part(params, gradients)])


def surrogate_in_parts(value: Tensor, parts: Sequence[Part]) -> Tensor:
    """The same for several parts, each delivered before the next is computed.

    So what listens to the gradients of a part, as DistributedDataParallel does to reduce them, can
    work on these meanwhile.
    """
    scalar = value.detach()
    for part in reversed(parts):  # the outermost comes first in the backward pass
        scalar = _Surrogate.apply(  # type: ignore[no-untyped-call]  # torch types no `apply`
            scalar, part, *part.params
        )
    return scalar


class _Surrogate(torch.autograd.Function):
    @override
    @staticmethod
    def forward(ctx: Any, value: Tensor, part: Part, *params: Tensor) -> Tensor:
        ctx.part = part
        return value.clone()

    @override
    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factor: Tensor) -> Any:
        known = ctx.part.gradients
        if not known:
            raise GraphError(
                "The backward pass of an aggregated loss can run only once. Compute the losses "
                "again, or aggregate them again."
            )
        # No reference may stay behind, or AccumulateGrad copies instead of taking the tensor.
        gradients = _times(known, factor)
        known.clear()
        return factor if ctx.needs_input_grad[0] else None, None, *_emptied(gradients)


def _emptied(tensors: list[Tensor]) -> tuple[Tensor, ...]:
    kept = tuple(tensors)
    tensors.clear()
    return kept


def _times(gradients: Sequence[Tensor], factor: Tensor) -> list[Tensor]:
    """All gradients times the factor, in place where nobody else has the memory."""
    # Looking at the factor is free on a CPU; on an accelerator the product is cheaper than a sync.
    if factor.device.type == "cpu" and float(factor) == 1.0:
        return list(gradients)
    is_dense = [g.layout is torch.strided and g.is_contiguous() for g in gradients]
    # Autograd gives one tensor out as the gradient of both terms of a sum.
    users = Counter(g.data_ptr() for g, dense in zip(gradients, is_dense, strict=True) if dense)
    found: list[Tensor] = []
    alone: dict[torch.device, list[Tensor]] = {}
    for gradient, dense in zip(gradients, is_dense, strict=True):
        if dense and users[gradient.data_ptr()] == 1:
            alone.setdefault(gradient.device, []).append(gradient)
            found.append(gradient)
        else:
            found.append(gradient * factor.to(gradient.device))
    for device, tensors in alone.items():
        torch._foreach_mul_(tensors, factor.to(device))  # one launch for many
    return found

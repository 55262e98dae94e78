"""Jacobians row by row, by ordinary autograd, and what a step leaves in ``.grad``."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

Losses = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
Parameters = nn.Module | Iterable[Tensor]


def scalars(losses: Losses) -> list[Tensor]:
    """The objectives one by one."""
    if isinstance(losses, Tensor):
        return list(losses.reshape(-1).unbind())
    return list(losses.values()) if isinstance(losses, Mapping) else list(losses)


def tensors_of(params: Parameters) -> list[Tensor]:
    return list(params.parameters() if isinstance(params, nn.Module) else params)


def flat(gradients: Iterable[Tensor]) -> Tensor:
    """One vector; of complex numbers, both parts."""
    parts = [torch.view_as_real(g.resolve_conj()) if g.is_complex() else g for g in gradients]
    return torch.cat([part.flatten() for part in parts])


def rows_by_autograd(losses: Losses, params: Parameters) -> Tensor:
    """The Jacobian, shape (m, n); zero where a loss does not reach. The graph is kept."""
    tensors = tensors_of(params)
    options = {"retain_graph": True, "materialize_grads": True}
    return torch.stack([flat(torch.autograd.grad(x, tensors, **options)) for x in scalars(losses)])


def flat_gradient(params: Parameters) -> Tensor:
    """What is in ``.grad``, as one vector."""
    return flat(p.grad for p in tensors_of(params) if p.grad is not None)

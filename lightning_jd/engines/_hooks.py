"""Keep the user's hooks away from gradients that are only steps on the way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor


@contextmanager
def hooks_silenced(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Let ``torch.autograd.grad`` run without the hooks of ``Tensor.register_hook``.

    Autograd calls them for every gradient that it computes, so also for single rows and for
    intermediate results. In ordinary training a hook sees each gradient once, when it is complete;
    it must not change the rows before that, and not act twice.

    Args:
        tensors: The leaf tensors that are differentiated with respect to.
    """
    hooked = [(tensor, tensor._backward_hooks) for tensor in tensors if tensor._backward_hooks]
    for tensor, _ in hooked:
        tensor._backward_hooks = None
    try:
        yield
    finally:
        for tensor, hooks in hooked:
            tensor._backward_hooks = hooks

"""Keep the user's hooks away from gradients that are only steps on the way, and notice new ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor
from torch.utils.hooks import RemovableHandle


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


class HookCount:
    """How many hooks a graph may have between its losses and its parameters.

    Autograd does not tell which nodes have hooks. But a graph is built in every step, so hooks in
    it were registered since the last one, and PyTorch numbers all hooks: what was not registered by
    this package is counted.
    """

    def __init__(self) -> None:
        self._graph: int | None = None
        self._number = RemovableHandle.next_id
        self._count = 0

    def of(self, graph: int) -> int:
        """The hooks that were registered while a graph was built, or shortly before.

        Args:
            graph: A number that tells graphs apart; the same graph keeps its count.
        """
        if self._graph is None:
            self._graph = graph  # modules and callbacks have registered theirs before
        elif graph != self._graph:
            self._graph, self._count = graph, RemovableHandle.next_id - self._number
        self._number = RemovableHandle.next_id
        return self._count

    @contextmanager
    def own(self) -> Iterator[None]:
        """Leave out the hooks that are registered inside."""
        before = RemovableHandle.next_id
        try:
            yield
        finally:
            self._number += RemovableHandle.next_id - before


hook_count = HookCount()

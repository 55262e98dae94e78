"""Keep parameter hooks away from intermediate gradients, and find graphs that may hold hooks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import local
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils.hooks import RemovableHandle


def hooks_silenced(tensors: Iterable[Tensor]) -> AbstractContextManager[None]:
    """Let ``torch.autograd.grad`` run without the hooks of ``Tensor.register_hook``.

    Autograd calls them for every gradient that it computes, so also for single rows and for
    intermediate results. In ordinary training a hook sees each gradient once, when it is complete;
    it must not change the rows before that, and not act twice.

    Args:
        tensors: The leaf tensors that are differentiated with respect to.
    """
    hooked = [(tensor, tensor._backward_hooks) for tensor in tensors if tensor._backward_hooks]
    return _silenced(hooked) if hooked else _NOTHING_TO_SILENCE


_NOTHING_TO_SILENCE = nullcontext()


@contextmanager
def _silenced(hooked: Sequence[tuple[Tensor, Any]]) -> Iterator[None]:
    for tensor, _ in hooked:
        tensor._backward_hooks = None
    try:
        yield
    finally:
        for tensor, hooks in hooked:
            tensor._backward_hooks = hooks


#: The number of every node that accumulates gradients.
_OF_LEAVES = 2**64 - 1


class HookHistory:
    """Counts the hooks of others that a graph may hold.

    Autograd does not tell which nodes have hooks. But PyTorch numbers hooks as it registers them,
    and nodes as it creates them, and a hook is registered after its node was created. So a graph
    holds no hook if none was registered since a moment before its first node was created. Such
    moments are noted whenever hooks were registered since the last one.

    Nodes are numbered thread by thread, and so are moments. A graph of another thread may hold
    hooks if its nodes have numbers that this thread has not reached; if this thread has created
    more nodes, hooks in such a graph are found by certificates only.
    """

    def __init__(self) -> None:
        self._own = 0
        self._of_thread = local()
        self._note()

    @property
    def _moments(self) -> deque[_Moment]:
        if not hasattr(self._of_thread, "moments"):
            self._of_thread.moments = deque[_Moment](maxlen=64)
        moments: deque[_Moment] = self._of_thread.moments
        return moments

    def count(self, nodes: Iterable[Node]) -> int:
        """How many hooks may be in a graph, all of whose nodes are given; at least so many."""
        registered = self.registered
        numbers = [node._sequence_nr() for node in nodes]
        first, latest = min(numbers), max([n for n in numbers if n != _OF_LEAVES], default=0)
        before = [moment.hooks for moment in self._moments if moment.node < first]
        self._note()
        if latest >= torch.autograd._get_sequence_nr():  # type: ignore[attr-defined]
            before = []
        return registered - before[-1] if before else registered + 1

    @contextmanager
    def own(self) -> Iterator[None]:
        """Leave out the hooks that are registered inside, and note a moment."""
        before = RemovableHandle.next_id
        try:
            yield
        finally:
            self._own += RemovableHandle.next_id - before
            self._note()

    def _note(self) -> None:
        moments, registered = self._moments, self.registered
        if not moments or registered != moments[-1].hooks:
            moments.append(self._moment(registered))

    @property
    def registered(self) -> int:
        """How many hooks others have registered so far."""
        return RemovableHandle.next_id - self._own

    @staticmethod
    def _moment(registered: int) -> _Moment:
        with torch.enable_grad(), torch.inference_mode(False):
            node = torch.zeros((), requires_grad=True).clone().grad_fn
        assert node is not None
        return _Moment(node._sequence_nr(), registered)


class _Moment(NamedTuple):
    """How many nodes and hooks there were.

    Attributes:
        node: The number of the node that was created last.
        hooks: How many hooks had been registered.
    """

    node: int
    hooks: int


hook_history = HookHistory()


def own_hooks() -> AbstractContextManager[None]:
    """Leave hooks of the package out, which are registered inside and change no gradient."""
    return hook_history.own()


def hooks_registered() -> int:
    """How many hooks others have registered so far."""
    return hook_history.registered


def listens(leaf: Tensor) -> bool:
    """Whether a hook, of a leaf or of its node, receives the gradient of the leaf.

    Hooks that are registered in C++ are not seen.
    """
    if leaf._backward_hooks or leaf._post_accumulate_grad_hooks:
        return True
    return holds_hook(get_gradient_edge(leaf).node)


def holds_hook(node: Node) -> bool:
    """Whether a hook was registered with a node itself, which shares the table of another one.

    Hooks of tensors, and those that are registered in C++, are not seen.
    """
    with hook_history.own():
        handles = [node.register_hook(_nothing), node.register_prehook(_nothing)]
    tables = [handle.hooks_dict_ref() for handle in handles]
    found = any(table is not None and len(table) > 1 for table in tables)
    for handle in handles:
        handle.remove()
    return found


def _nothing(*gradients: Any) -> None:
    """A hook that leaves gradients as they are."""

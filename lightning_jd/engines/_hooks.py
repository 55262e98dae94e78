"""Keep the user's hooks away from gradients that are only steps on the way, and notice new ones."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

from torch import Tensor
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


class Registered(NamedTuple):
    """Hooks that may be in a graph.

    Attributes:
        numbers: The numbers that PyTorch gave them.
        total: How many there are; zero for the first graph, before which everybody registers hooks.
    """

    numbers: range
    total: int


class HookRegister:
    """Which hooks a graph may have between its losses and its parameters.

    Autograd does not tell which nodes have hooks. But a graph is built in every step, so hooks in
    it were registered since the last one, and PyTorch numbers all hooks.
    """

    def __init__(self) -> None:
        self._graph: int | None = None
        self._known = 0
        self._hooks = Registered(range(0), 0)

    def of(self, graph: int) -> Registered:
        """The hooks that were registered since the last graph.

        Args:
            graph: A number that tells graphs apart; the same graph keeps its hooks.
        """
        if graph != self._graph:
            numbers = range(self._known, RemovableHandle.next_id)
            self._hooks = Registered(numbers, 0 if self._graph is None else len(numbers))
            self._graph = graph
        self._known = RemovableHandle.next_id
        return self._hooks

    @contextmanager
    def own(self) -> Iterator[None]:
        """Leave out the hooks that are registered inside."""
        before = RemovableHandle.next_id
        try:
            yield
        finally:
            self._known += RemovableHandle.next_id - before


hook_register = HookRegister()


class HookWatch:
    """Tells hooks that only look from those that change gradients.

    A hook that looks should do so once per step, however many passes are made to check a step.

    Args:
        hooks: The numbers of the hooks.
    """

    def __init__(self, hooks: range) -> None:
        self._hooks = hooks
        self._looking: set[int] = set()
        self._changing: set[int] = set()
        # Nobody but the garbage collector knows all tables of hooks.
        objects = gc.get_objects() if len(hooks) else []
        self._tables = [
            table
            for table in objects
            if type(table) in (dict, OrderedDict) and _is_numbered(table) and self._in(table)
        ]

    def _in(self, table: dict[Any, Any]) -> list[int]:
        # Other tables have numbers as keys too, such as the tasks of a progress bar by their
        # number, which a thread draws meanwhile: what cannot be called is no hook.
        return [
            key
            for key in tuple(table)
            if type(key) is int and key in self._hooks and callable(table.get(key))
        ]

    @contextmanager
    def one_pass(self) -> Iterator[None]:
        """Leave out the hooks that have run in a pass before and changed nothing."""
        only_look = self._looking - self._changing

        def watched(key: int, hook: Callable[..., Any]) -> Callable[..., Any]:
            def watch(*args: Any, **kwargs: Any) -> Any:
                answer = hook(*args, **kwargs)
                (self._looking if _is_unchanged(answer, args) else self._changing).add(key)
                return answer

            return (lambda *args, **kwargs: None) if key in only_look else watch

        before = [(table, key, table[key]) for table in self._tables for key in self._in(table)]
        for table, key, hook in before:
            table[key] = watched(key, hook)
        try:
            yield
        finally:
            for table, key, hook in before:
                if key in table:
                    table[key] = hook


def _is_numbered(table: dict[Any, Any]) -> bool:
    """Whether the keys of a table may be numbers of hooks."""
    try:
        return type(next(iter(table), None)) is int
    except RuntimeError:  # another thread is changing it, so it is no table of hooks in this graph
        return False


def _is_unchanged(answer: Any, args: tuple[Any, ...]) -> bool:
    """Whether a hook returned nothing, or the very gradients that it was given."""
    if answer is None or answer is args[0]:
        return True
    return (
        isinstance(answer, tuple)
        and isinstance(args[0], tuple)
        and len(answer) == len(args[0])
        and all(new is old for new, old in zip(answer, args[0], strict=True))
    )

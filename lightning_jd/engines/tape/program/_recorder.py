"""Records the operations on tensors that some code performs.

The code runs as always. What it decides by sizes and arguments is decided when it is recorded; what
it would decide by the *values* of tensors cannot be replayed, so nothing is recorded then.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from lightning_jd.engines.tape.graph import is_constant
from lightning_jd.engines.tape.program._operations import (
    NOTHING,
    Operation,
    Slot,
    Value,
    geometry_of,
)

#: Methods by which values of tensors reach Python.
_LOOKS = frozenset(
    "item tolist numpy __array__ __bool__ __int__ __float__ __index__ __contains__ cpu".split()
)
#: Operations whose results have shapes that depend on values.
_BY_VALUE = frozenset(
    "_local_scalar_dense nonzero masked_select unique _unique2 unique_dim".split()
)

_SLOT = "_lightning_jd_slot"


class UnrecordableError(Exception):
    """Raised inside of recorded code that cannot be replayed; never leaves this package."""


class Recorder:
    """A list of operations in the making.

    Every tensor that recorded code gets from elsewhere must be announced with :meth:`input`.
    """

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.values: list[Value] = []
        self.inputs: list[Slot] = []
        self.constants: dict[Slot, Tensor] = {}
        #: Whether the weights are known.
        self.is_late = False
        self._is_paused = False
        self._count = 0
        self._marked: list[weakref.ref[Tensor]] = []

    def input(self, tensor: Tensor) -> Tensor:
        """Announce a tensor that is handed over in every step.

        Returns:
            What recorded code must use in its place: two inputs may be one tensor in this step, and
            two in another.
        """
        with self.paused():
            alias = tensor.detach()
        self.inputs.append(self._new(alias, self._memory(), is_input=True))
        return alias

    def slot_of(self, tensor: Tensor) -> Slot:
        """Where a tensor of the recorded code is.

        Raises:
            UnrecordableError: If it comes from elsewhere.
        """
        if (slot := self._known(tensor)) is not None:
            return slot
        if not is_constant(tensor):
            raise UnrecordableError("a tensor that was not announced")
        slot = self._new(tensor, self._memory(), is_input=True)
        self.constants[slot] = tensor
        return slot

    def close(self) -> None:
        """Leave no trace on the tensors that were seen."""
        for mark in self._marked:
            if (tensor := mark()) is not None and hasattr(tensor, _SLOT):
                delattr(tensor, _SLOT)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not record what happens inside."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what happens inside.

        Raises:
            UnrecordableError: If it depends on the values of tensors.
        """
        with _Looks(), _Dispatched(self):
            yield

    def add(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> None:
        """Note a call and what it returned."""
        if self._is_paused:
            return
        if function._schema.name.removeprefix("aten::") in _BY_VALUE:  # type: ignore[attr-defined]
            raise UnrecordableError(function.__name__)
        schema = function._schema  # type: ignore[attr-defined]
        written = [
            argument
            for argument, declared in zip(args, schema.arguments, strict=False)
            if declared.alias_info is not None and declared.alias_info.is_write
        ]
        written += [
            kwargs[declared.name]
            for declared in schema.arguments
            if declared.name in kwargs
            and declared.alias_info is not None
            and declared.alias_info.is_write
        ]
        places = self._placed((args, kwargs))
        writes = set()
        for tensor in written:
            value = self.values[self.slot_of(tensor).number]
            if value.is_input:
                raise UnrecordableError("an input that is written to")
            writes.add(value.memory)
        results = []
        several = isinstance(out, (tuple, list))
        for tensor in out if several else (out,):
            if tensor is None:
                results.append(NOTHING)
                continue
            if not isinstance(tensor, Tensor):
                raise UnrecordableError("a result that is no tensor")
            slot = self._known(tensor)
            if slot is not None and self.values[slot.number].geometry != geometry_of(tensor):
                raise UnrecordableError("a tensor that changes its shape in place")
            if slot is None:
                before = self._count
                memory = self._memory_of(tensor, (args, kwargs))
                if self._count > before:
                    writes.add(memory)
                slot = self._new(tensor, memory)
            results.append(slot)
        found_args, found_kwargs = places
        self.operations.append(
            Operation(
                *(function, found_args, found_kwargs, tuple(results)),
                writes=frozenset(writes),
                returns_tuple=several,
                is_late=self.is_late,
            )
        )

    def _placed(self, tree: Any) -> Any:
        if isinstance(tree, Tensor):
            return self.slot_of(tree)
        if isinstance(tree, (tuple, list)):
            return type(tree)([self._placed(entry) for entry in tree])
        if isinstance(tree, dict):
            return {key: self._placed(entry) for key, entry in tree.items()}
        return tree

    def _memory(self) -> int:
        self._count += 1
        return self._count

    def _memory_of(self, tensor: Tensor, arguments: Any) -> int:
        """The memory of a new tensor: that of an argument it is a view of, or a new one."""
        address = tensor.untyped_storage()._cdata
        for argument in _tensors_in(arguments):
            if argument.untyped_storage()._cdata == address:
                return self.values[self.slot_of(argument).number].memory
        return self._memory()

    def _new(self, tensor: Tensor, memory: int, *, is_input: bool = False) -> Slot:
        if tensor.is_conj() or tensor.is_neg():
            raise UnrecordableError("a view that changes the numbers")
        slot = Slot(len(self.values))
        self.values.append(Value(memory, geometry_of(tensor), tensor.dtype, is_input))
        setattr(tensor, _SLOT, (self, slot))  # not by address, which another tensor may get
        self._marked.append(weakref.ref(tensor))
        return slot

    def _known(self, tensor: Tensor) -> Slot | None:
        owner, slot = getattr(tensor, _SLOT, (None, None))
        return slot if owner is self else None


def _tensors_in(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for entry in tree:
            yield from _tensors_in(entry)
    elif isinstance(tree, dict):
        yield from _tensors_in(tuple(tree.values()))


class _Dispatched(TorchDispatchMode):
    """Hears of every operation."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch types no modes
        self._recorder = recorder

    @override
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch imports its compiler, which takes seconds

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self._recorder.add(func, args, kwargs or {}, out)
        return out


class _Looks(TorchFunctionMode):
    """Refuses what shows values of tensors to Python."""

    @override
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", None) in _LOOKS:
            raise UnrecordableError(func.__name__)
        return func(*args, **(kwargs or {}))

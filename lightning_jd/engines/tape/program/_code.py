"""Two lists of operations as two Python functions without a decision in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_jd.engines.tape.program._operations import (
    NOTHING,
    Operation,
    Slot,
    replaced,
    slots_in,
)
from lightning_jd.engines.tape.program._recorder import Recorder
from lightning_jd.engines.tape.program._simplify import simplified

_aten = torch.ops.aten
#: The same operations by a shorter way than the dispatcher's table of overloads, which takes 4 µs.
_DIRECT: dict[Any, Callable[..., Any]] = {
    _aten._unsafe_view.default: Tensor.view,
    _aten.add.Tensor: torch.add,
    _aten.add_.Tensor: Tensor.add_,
    _aten.addcmul.default: torch.addcmul,
    _aten.addmm.default: torch.addmm,
    _aten.addmm_.default: Tensor.addmm_,
    _aten.as_strided.default: torch.as_strided,
    _aten.bmm.default: torch.bmm,
    _aten.bmm.out: torch.bmm,
    _aten.cat.default: torch.cat,
    _aten.clone.default: torch.clone,
    _aten.constant_pad_nd.default: torch.constant_pad_nd,
    _aten.div.Tensor: torch.div,
    _aten.expand.default: Tensor.expand,
    _aten.index_add_.default: Tensor.index_add_,
    _aten.index_copy_.default: Tensor.index_copy_,
    _aten.mm.default: torch.mm,
    _aten.mul.Tensor: torch.mul,
    _aten.mul_.Tensor: Tensor.mul_,
    _aten.mv.default: torch.mv,
    _aten.new_empty.default: Tensor.new_empty,
    _aten.new_zeros.default: Tensor.new_zeros,
    _aten.permute.default: torch.permute,
    _aten.rsqrt.default: torch.rsqrt,
    _aten.select.int: torch.select,
    _aten.stack.default: torch.stack,
    _aten.sub.Tensor: torch.sub,
    _aten.sum.dim_IntList: torch.sum,
    _aten.t.default: torch.t,
    _aten.transpose.int: torch.transpose,
    _aten.unsqueeze.default: torch.unsqueeze,
    _aten.view.default: Tensor.view,
}


class Program:
    """What a step does between autograd and the optimizer.

    Args:
        recorder: What was recorded.
        weights: The input that holds the weights.
        gramian: Where the Gramian is.
        gradients: Where the gradients are.
        order: The order in which the other inputs are handed over.
    """

    def __init__(
        self,
        recorder: Recorder,
        weights: Slot,
        gramian: Slot,
        gradients: Sequence[Slot],
        order: Sequence[Slot],
    ) -> None:
        results = [gramian, *gradients]
        operations, names = simplified(recorder.operations, recorder.values, results)
        gramian, *gradients = [replaced(slot, names) for slot in results]
        first = [operation for operation in operations if not operation.is_late]
        second = [operation for operation in operations if operation.is_late]
        made = {slot for operation in second for slot in operation.results}
        needed = dict.fromkeys(
            slot
            for slot in (*_reads(second), *gradients)
            if slot not in made and slot != weights and slot not in recorder.constants
        )
        #: Tensors that the second list reads from the first.
        self.kept = len(needed)
        constants = recorder.constants
        #: Saved tensors and cotangents -> the Gramian, and what is kept.
        self.assemble = _function("assemble", order, first, [gramian, *needed], constants)
        #: The weights, and what was kept -> the gradients.
        self.replay = _function("replay", [weights, *needed], second, list(gradients), constants)


def _reads(operations: Sequence[Operation]) -> list[Slot]:
    return [slot for operation in operations for slot in operation.reads()]


def _function(
    name: str,
    inputs: Sequence[Slot],
    operations: Sequence[Operation],
    results: Sequence[Slot],
    constants: dict[Slot, Tensor],
) -> Callable[[list[Tensor]], tuple[Tensor, ...]]:
    """Write and compile a function of a list of tensors, which it empties."""
    scope: dict[str, Any] = {_name(slot): tensor for slot, tensor in constants.items()}
    last_use = {slot: k for k, operation in enumerate(operations) for slot in operation.reads()}
    lines = [f"def {name}(tensors):"]
    if inputs:
        lines += [f"    ({', '.join(map(_name, inputs))},) = tensors", "    tensors.clear()"]
    unread = [slot for slot in inputs if slot not in last_use and slot not in results]
    lines += [f"    del {', '.join(map(_name, unread))}"] if unread else []
    for k, operation in enumerate(operations):
        called, arguments = operation.function, operation.args
        if called is _aten.permute.default and tuple(arguments[1]) == (1, 0):
            called, arguments = _aten.t.default, arguments[:1]
        scope[f"f{k}"] = _DIRECT.get(called, called)
        args = [_written(argument, scope) for argument in arguments]
        args += [f"{key}={_written(value, scope)}" for key, value in operation.kwargs.items()]
        targets = ", ".join(map(_name, operation.results))
        targets += "," if operation.returns_tuple else ""
        lines.append(f"    {targets} = f{k}({', '.join(args)})")
        done = dict.fromkeys(
            slot
            for slot in (*operation.reads(), *operation.results)
            if last_use.get(slot, k) == k and slot not in results and slot not in constants
        )
        lines += [f"    del {', '.join(map(_name, done))}"] if done else []
    lines.append(f"    return ({''.join(_name(slot) + ', ' for slot in results)})")
    exec(compile("\n".join(lines), f"<{name}>", "exec"), scope)
    function: Callable[[list[Tensor]], tuple[Tensor, ...]] = scope[name]
    function.__doc__ = "\n".join(lines)
    return function


def _name(slot: Slot) -> str:
    return "_" if slot is NOTHING else f"t{slot.number}"


def _written(argument: Any, scope: dict[str, Any]) -> str:
    """An argument as source text; what has none gets a name."""
    if isinstance(argument, Slot):
        return _name(argument)
    if isinstance(argument, (tuple, list)):
        inner = "".join(_written(entry, scope) + ", " for entry in argument)
        return f"[{inner}]" if any(True for _ in slots_in(argument)) else f"({inner})"
    if argument is None or isinstance(argument, (bool, int)):
        return repr(argument)
    name = f"c{len(scope)}"
    scope[name] = argument
    return name

"""A step between autograd and the optimizer as two functions without a decision in them.

``make_fx`` traces the code of a step once. What the code decides by sizes is decided then; code
that reads the *values* of tensors cannot be traced. The trace is cut in two at the first operation
that reads the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves
from typing_extensions import override

from lightning_jd.engines.tape.graph import is_constant

#: Inputs and weights -> the Gramian and the gradients.
StepCode = Callable[[list[Tensor], Tensor], tuple[Tensor, list[Tensor]]]

_aten = torch.ops.aten
_OF_TORCH = (
    "addcmul addmm as_strided bmm cat clone constant_pad_nd mm mv permute rsqrt stack t unsqueeze"
)
_OF_TENSORS = "addmm_ expand index_add_ index_copy_ new_empty new_zeros view"
#: The same operations by a shorter way than the dispatcher's table of overloads, which takes 4 µs.
_DIRECT: dict[Any, Callable[..., Any]] = {
    **{getattr(_aten, name).default: getattr(torch, name) for name in _OF_TORCH.split()},
    **{getattr(_aten, name).default: getattr(Tensor, name) for name in _OF_TENSORS.split()},
    **{getattr(_aten, name).Tensor: getattr(torch, name) for name in ("add", "div", "mul", "sub")},
    **{getattr(_aten, name).Tensor: getattr(Tensor, name) for name in ("add_", "mul_")},
    _aten._unsafe_view.default: Tensor.view,
    _aten.bmm.out: torch.bmm,
    _aten.select.int: torch.select,
    _aten.sum.dim_IntList: torch.sum,
    _aten.transpose.int: torch.transpose,
}
#: Operations whose results have shapes that depend on values if the indices are masks.
_BY_INDEX = (_aten.index.Tensor,)


class UntraceableError(Exception):
    """Raised where a step cannot be traced; never leaves this package."""


class Program:
    """A traced step.

    Args:
        step: The code of the step.
        inputs: What every step hands over; contents do not matter.
        weights: Some weights.

    Attributes:
        assemble: A list of inputs, which is emptied -> the Gramian, and what is kept.
        replay: The same of the weights and what was kept -> the gradients.

    Raises:
        UntraceableError: If the code reads values of tensors, writes to an input, or uses a tensor
            that is neither an input nor a constant.
    """

    def __init__(self, step: StepCode, inputs: Sequence[Tensor], weights: Tensor) -> None:
        try:
            module = make_fx(step)([tensor.detach() for tensor in inputs], weights)
        except RuntimeError as error:  # it reads values
            raise UntraceableError(str(error)) from error
        _simplify(module, [*inputs, weights])
        *nodes, output = module.graph.nodes
        constants = [node for node in nodes if node.op == "get_attr"]
        if not all(is_constant(getattr(module, str(node.target))) for node in constants):
            raise UntraceableError("a tensor that is not handed over")
        *given, last = [node for node in nodes if node.op == "placeholder"]
        gramian, gradients = _results(output)
        calls = [node for node in nodes if node.op == "call_function"]
        cut = next((k for k, node in enumerate(calls) if last in node.all_input_nodes), len(calls))
        early, late = calls[:cut], calls[cut:]
        read = [other for node in late for other in node.all_input_nodes] + gradients
        kept = [n for n in dict.fromkeys(read) if n not in {*late, *constants, last}]
        self.early = _module(module, given, [*constants, *early], [gramian, *kept])
        self.late = _module(module, [last, *kept], [*constants, *late], gradients)
        self.assemble: Callable[[list[Tensor]], tuple[Tensor, ...]] = self.early.forward
        self.replay: Callable[[list[Tensor]], tuple[Tensor, ...]] = self.late.forward


def _results(output: fx.Node) -> tuple[fx.Node, list[fx.Node]]:
    found: Any = output.args[0]
    gramian, *gradients = found
    return gramian, gradients


def _module(
    traced: fx.GraphModule,
    inputs: Sequence[fx.Node],
    operations: Sequence[fx.Node],
    results: Sequence[fx.Node],
) -> fx.GraphModule:
    """A part of a trace that takes a list of tensors and empties it."""
    graph, new = fx.Graph(), dict[fx.Node, fx.Node]()
    given = graph.placeholder("given")
    for node in reversed(inputs):  # what is taken from the list is freed after its last use
        new[node] = graph.create_node("call_method", "pop", (given,), name=node.name)
    for node in operations:
        new[node] = graph.node_copy(node, new.__getitem__)
        new[node].target = _DIRECT.get(node.target, node.target)
    graph.output(tuple([new[node] for node in results]))
    return fx.GraphModule(traced, graph)


class _Values(fx.Interpreter):
    """Runs a trace once and keeps every tensor: same memory and geometry mean the same tensor."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.found: dict[fx.Node, Tensor] = {}

    @override
    def run_node(self, n: fx.Node) -> Any:
        if torch.Tag.dynamic_output_shape in getattr(n.target, "tags", ()):
            indices = tree_leaves(self.fetch_args_kwargs_from_env(n))[1:]
            is_index = n.target in _BY_INDEX and all(
                i is None or i.dtype == torch.int64 for i in indices
            )
            if not is_index:
                raise UntraceableError("a result whose shape depends on values")
        value = super().run_node(n)
        if isinstance(value, Tensor) and n.op != "output":
            if value.is_conj() or value.is_neg():
                raise UntraceableError("a view that changes the numbers")
            self.found[n] = value
        return value


def _simplify(module: fx.GraphModule, inputs: Sequence[Tensor]) -> None:
    """Share equal views, and take views of views from the tensor at their root."""
    run = _Values(module)
    run.run(*map(_separate, inputs))
    memory = {node: value.untyped_storage()._cdata for node, value in run.found.items()}
    written = _written(module, memory)
    if any(memory[node] in written for node in module.graph.nodes if node.op == "placeholder"):
        raise UntraceableError("an input that is written to")
    first: dict[Any, fx.Node] = {}
    roots: dict[int, fx.Node] = {}  # by memory
    for node, value in run.found.items():
        root = roots.setdefault(memory[node], node)
        where = root, value.shape, value.stride(), value.storage_offset(), value.dtype
        if node.op != "call_function" or _is_mutable(node):
            first.setdefault(where, node)
        elif root is not node:
            if (known := first.setdefault(where, node)) is not node:
                node.replace_all_uses_with(known)
            else:
                _take_from(root, run.found[root], node, value)
    module.graph.eliminate_dead_code()  # before `_DIRECT` hides which operations write


def _take_from(root: fx.Node, whole: Tensor, node: fx.Node, part: Tensor) -> None:
    """Make a view one of its root by its strides; an input may begin anywhere in its memory."""
    begin, own = whole.storage_offset(), part.storage_offset()
    if part.dtype != whole.dtype or (begin != own and root.op == "placeholder"):
        return
    offset = () if begin == own else (own,)
    node.target, node.kwargs = _aten.as_strided.default, {}
    node.args = (root, tuple(part.shape), part.stride(), *offset)


def _is_mutable(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _written(module: fx.GraphModule, memory: dict[fx.Node, int]) -> set[int]:
    """The memories that some operation writes to."""
    found: set[int] = set()
    for node in module.graph.nodes:
        if node.op != "call_function" or not _is_mutable(node):
            continue
        for position, argument in enumerate(node.target._schema.arguments):
            if argument.is_write:
                is_positional = position < len(node.args)
                target = node.args[position] if is_positional else node.kwargs.get(argument.name)
                if isinstance(target, fx.Node):
                    found.add(memory[target])
    return found


def _separate(tensor: Tensor) -> Tensor:
    """A copy with memory of its own: two inputs may be one tensor in this step only."""
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    whole = tensor.detach().as_strided((size,), (1,), 0).clone()
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

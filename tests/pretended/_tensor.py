"""Tensors that say they are on the device, and the one function that runs all their operations."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map
from typing_extensions import override

from tests.pretended._device import DEVICE, NAME
from tests.pretended._operations import note_kernel
from tests.pretended._precision import refuse_float64
from tests.pretended._synchronisations import record

aten = torch.ops.aten
CPU = torch.device("cpu")
_PYTHON = torch._C.DispatchKeySet(torch._C.DispatchKey.Python)

#: Operations whose result has a size that only the device knows, or that look at numbers. (And all
#: that return no tensor, such as ``torch.equal``.)
_WAITS = {
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "bincount",
    "histc",
    "_linalg_check_errors",
}
#: Operations that take indices or lengths from the host beside tensors of the device.
_MIXES = {
    "index",
    "index_put",
    "index_put_",
    "_index_put_impl_",
    "_unsafe_index",
    "_pack_padded_sequence",
    "_pack_padded_sequence_backward",
}
#: Beside those that torch itself calls pointwise: they take a number of the host.
_TAKES_NUMBERS = {"fill_", "fill", "masked_fill", "masked_fill_", "where", "clamp", "lerp", "set_"}


#: A conjugate that is only a mark on a tensor would be on the numbers alone, out of sight.
_PHYSICAL = {
    aten._conj.default: aten._conj_physical.default,
    aten._neg_view.default: aten.neg.default,
}


class DeviceTensor(Tensor):
    """A tensor of the device; ``held`` are its numbers, which nobody but this package may touch."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "DeviceTensor":
        refuse_float64(held.dtype)
        if held.layout is not torch.strided:
            return Tensor._make_wrapper_subclass(
                cls, held.size(), dtype=held.dtype, layout=held.layout, device=DEVICE
            )
        return Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )

    def __init__(self, held: Tensor) -> None:
        self.held = held

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    @override
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return run(func, args, kwargs or {})

    @override
    def tolist(self) -> Any:
        record("tolist")
        return self.held.tolist()

    @override
    def untyped_storage(self) -> torch.UntypedStorage:
        """Where the numbers are; FSDP frees and fills it."""
        return self.held.untyped_storage()

    @override
    def data_ptr(self) -> int:
        """The address of the first number."""
        return self.held.data_ptr()

    @override
    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        record("repr")
        return f"{self.held!r} on {NAME}"

    @override
    def __format__(self, specification: str) -> str:
        if self.ndim:
            return repr(self)
        record("format")
        return format(self.held.item(), specification)

    @override
    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            copy = self.detach().clone().requires_grad_(self.requires_grad)
            if isinstance(self, torch.nn.Parameter):
                copy._is_param = True
            if self.grad is not None:
                copy.grad = self.grad.__deepcopy__(memo)
            memo[id(self)] = copy
        return memo[id(self)]

    @override
    def __reduce_ex__(self, protocol: Any) -> Any:
        record("pickle")
        is_parameter = isinstance(self, torch.nn.Parameter)
        return _restored, (self.held.detach(), self.requires_grad, is_parameter)


def _restored(held: Tensor, requires_grad: bool, is_parameter: bool) -> Tensor:
    tensor = DeviceTensor(held.clone())
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


def host(tensor: Tensor) -> Tensor:
    """The numbers, for comparisons in tests: it counts as no synchronisation."""
    tensor = tensor.detach()
    return tensor.held.clone() if isinstance(tensor, DeviceTensor) else tensor


def _inner(value: Any) -> Any:
    return value.held if isinstance(value, DeviceTensor) else value


def _outer(value: Any) -> Any:
    is_bare = isinstance(value, Tensor) and not isinstance(value, DeviceTensor)
    return DeviceTensor(value) if is_bare else value


def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one operation on the numbers, with the manners of a device."""
    if func.namespace == "_c10d_functional":  # torch hands these on to the process group
        with torch._C._ExcludeDispatchKeyGuard(_PYTHON):
            return func(*args, **kwargs)
    name = func.overloadpacket.__name__
    if name == "_local_scalar_dense":
        record("item")
        return func(_inner(args[0]))
    if name in ("copy_", "_copy_from", "_copy_from_and_resize"):
        return _copy(func, name, args, kwargs)
    if name == "resize_":
        return _resize(*args[:2])
    _refuse_mixture(func, name, args, kwargs)
    _count(func, name, args)
    to_host, inner = False, kwargs
    if kwargs.get("device") is not None:
        to_host = torch.device(kwargs["device"]).type != DEVICE.type
        inner = {**kwargs, "device": CPU}
    if to_host and name == "_to_copy":
        refuse_float64(kwargs.get("dtype"))  # the device converts, before the copy
        record("to host")  # also where it may be asynchronous: `to` pins no memory
    if kwargs.get("generator") is not None:
        from tests.pretended._generator import check_generator

        check_generator(func, kwargs["generator"])
    func = _PHYSICAL.get(func, func)
    held_args, held_kwargs = tree_map(_inner, (args, inner))
    out = func(*held_args, **held_kwargs)
    if not to_host:  # such a copy is part of the wait
        note_kernel(func, held_args, held_kwargs, out)
    if to_host:
        return out
    _refuse_growth(func, kwargs.get("out"))
    if name == "_pack_padded_sequence":  # sizes of steps stay on the host
        return _outer(out[0]), out[1]
    return return_and_correct_aliasing(func, args, kwargs, tree_map(_outer, out))


def _refuse_growth(func: Any, out: Any) -> None:
    for each in tree_leaves(out):
        if isinstance(each, DeviceTensor) and each.shape != each.held.shape:
            raise NotImplementedError(f"{func} would resize a tensor of {NAME}.")


def _copy(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Between host and device; a copy waits unless it may be asynchronous."""
    target, source = args[:2] if name == "copy_" else (args[1], args[0])
    is_asynchronous = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
    into, out_of = isinstance(target, DeviceTensor), isinstance(source, DeviceTensor)
    if out_of and not into:
        refuse_float64(target.dtype)
        # Even if it may be asynchronous, it is not unless the memory is pinned.
        if not (is_asynchronous and getattr(target, "is_pinned_for_the_device", False)):
            record("to host")
    elif into and not out_of and not is_asynchronous:
        record("to device")  # torch waits for the stream after a copy that may not be asynchronous
    held = _inner(target).copy_(_inner(source))
    if into:
        note_kernel(func, (held, _inner(source)), {}, held)
    return target


def _resize(tensor: DeviceTensor, size: Any) -> DeviceTensor:
    """New sizes for the wrapper, too; views of it are not resized, which is nobody's habit."""
    held = tensor.held.resize_(size)
    tensor.data = DeviceTensor(held)
    tensor.held = held
    return tensor


def _refuse_mixture(func: Any, name: str, args: Any, kwargs: Any) -> None:
    if name in _MIXES:
        return
    leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    strangers = [leaf for leaf in leaves if not isinstance(leaf, DeviceTensor)]
    if not strangers or len(strangers) == len(leaves):
        return
    takes_numbers = torch.Tag.pointwise in func.tags or name in _TAKES_NUMBERS
    for stranger in strangers:
        if stranger.ndim or not takes_numbers:
            raise RuntimeError(
                f"{func}: all tensors must be on one device, got one of {stranger.device} with "
                f"shape {tuple(stranger.shape)} among those of {NAME}."
            )


def _count(func: Any, name: str, args: Any) -> None:
    returned = func._schema.returns
    is_number = bool(returned) and not any("Tensor" in str(each.type) for each in returned)
    if is_number or name in _WAITS or (name == "repeat_interleave" and len(args) == 1):
        record(name)
    if name in _MIXES:
        for index in tree_leaves(args[1:2]):
            if isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8):
                record("boolean index")
            if isinstance(index, Tensor) and not isinstance(index, DeviceTensor) and index.ndim:
                record("index from the host")

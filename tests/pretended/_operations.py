"""What a step asks the device to compute, in order: kernels with their work, and waits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten
#: They allocate, or name what is there in another way, and launch nothing.
_NO_KERNELS = {
    "_unsafe_view",
    "detach",
    "alias",
    "lift_fresh",
    "empty",
    "empty_strided",
    "empty_like",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "_local_scalar_dense",
    "_linalg_check_errors",
}
#: Floating-point operations of a factorisation of an n x n matrix, over n³ (for a solution, n² k).
_FACTORS = {
    "linalg_cholesky_ex": 1 / 3,
    "linalg_inv_ex": 2.0,
    "_linalg_eigh": 9.0,
    "linalg_solve_triangular": 1.0,
    "cholesky_solve": 2.0,
    "linalg_lu_factor_ex": 2 / 3,
    "_linalg_solve_ex": 2 / 3,
}


@dataclass(frozen=True)
class Operation:
    """One kernel, or one wait of the host.

    Attributes:
        name: Of the operation in torch, or what the host waits for.
        flops: Floating-point operations.
        bytes: What is read and written, each tensor once.
        dtype: ``"float32"`` and so on; the type of the first tensor.
        is_wait: The host waits here until the device has done all that was asked before.
        at: When the host asked for it, in seconds on its own clock.
    """

    name: str
    flops: float
    bytes: float
    dtype: str
    is_wait: bool
    at: float


_listeners: list[list[Operation]] = []


@contextmanager
def operations() -> Iterator[list[Operation]]:
    """Record all operations on the device; the list fills while the block runs."""
    found: list[Operation] = []
    _listeners.append(found)
    try:
        yield found
    finally:
        _listeners[:] = [each for each in _listeners if each is not found]


def note_wait(kind: str) -> None:
    """The host waits."""
    _tell(Operation(kind, 0.0, 0.0, "", True, time.perf_counter()))


def note_kernel(func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """An operation was run on these numbers; views are left out."""
    name = func.overloadpacket.__name__
    if not _listeners or func.is_view or name in _NO_KERNELS:
        return
    tensors = [leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, Tensor)]
    if tensors:
        dtype = str(tensors[0].dtype).removeprefix("torch.")
        flops, moved = _flops(func, name, args, kwargs, out), _bytes(tensors)
        _tell(Operation(name, flops, moved, dtype, False, time.perf_counter()))


def _tell(operation: Operation) -> None:
    for listener in _listeners:
        listener.append(operation)


def _flops(func: Any, name: str, args: Any, kwargs: Any, out: Any) -> float:
    if name in _FACTORS:
        matrices = [each for each in args if isinstance(each, Tensor)]
        n, columns = matrices[0].shape[-1], matrices[-1].shape[-1]
        batch = matrices[0].numel() / max(1, n * matrices[0].shape[-2])
        return float(_FACTORS[name] * batch * n * n * columns)
    if name == "convolution":
        return _convolution(args[0], args[1], out, transposed=args[6])
    if name == "convolution_backward":
        directions = sum(map(bool, args[10][:2]))  # to the input, to the weight
        return directions * _convolution(args[1], args[2], args[0], transposed=args[7])
    count = flop_registry.get(func.overloadpacket)
    return 0.0 if count is None else float(count(*args, **kwargs, out_val=out))


def _convolution(x: Tensor, weight: Tensor, y: Tensor, transposed: bool) -> float:
    """Each entry of the output (transposed: of the input) meets the filters of its group once."""
    return float(2 * (x if transposed else y).numel() * (weight.numel() // weight.shape[0]))


def _bytes(tensors: list[Tensor]) -> float:
    """Every place in memory once: an expanded tensor is as large as what it repeats."""
    seen: dict[tuple[int, int], int] = {}
    for tensor in tensors:
        if tensor.layout is torch.strided:
            numbers = [n for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
            size = tensor.element_size() * int(torch.Size(numbers).numel())
            key = (tensor.data_ptr(), size)
            seen[key] = size
    return float(sum(seen.values()))

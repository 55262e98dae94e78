"""The kernels that a step asks of the device, in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

#: They allocate, or name what is there in another way, and launch nothing.
_NO_KERNELS = {
    *("_unsafe_view", "detach", "alias", "lift_fresh", "empty", "empty_strided", "empty_like"),
    *("new_empty", "new_empty_strided", "resize_", "_local_scalar_dense", "_linalg_check_errors"),
}
#: Floating-point operations of a factorisation of n x n matrices, over their numbers times n.
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
    """One kernel.

    Attributes:
        name: Of the operation in torch.
        flops: Floating-point operations of a product or a factorisation.
        dtype: ``"float32"`` and so on; the type of the first tensor.
    """

    name: str
    flops: float
    dtype: str


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


def note_kernel(func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """An operation was run on these numbers; views are left out."""
    name = func.overloadpacket.__name__
    if not _listeners or func.is_view or name in _NO_KERNELS:
        return
    tensors = [leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, Tensor)]
    if tensors:
        dtype = str(tensors[0].dtype).removeprefix("torch.")
        for listener in _listeners:
            listener.append(Operation(name, _flops(func, name, args, kwargs, out), dtype))


def _flops(func: Any, name: str, args: Any, kwargs: Any, out: Any) -> float:
    if name in _FACTORS:
        matrices = [each for each in args if isinstance(each, Tensor)]
        return _FACTORS[name] * matrices[0].numel() * matrices[-1].shape[-1]
    count = flop_registry.get(func.overloadpacket)
    return 0.0 if count is None else float(count(*args, **kwargs, out_val=out))

"""A process group for the device that is as strict as NCCL; the numbers travel by gloo.

``dist.init_process_group("strict", ...)``: only contiguous tensors of the device, only the types
and the reductions of NCCL. Objects are refused with them, unless torch sends them as tensors of the
device. What NCCL does and this does not: it lets the host go on while it works, and it runs in the
order of a stream.
"""

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _create_work_from_future
from torch.utils._pytree import tree_leaves, tree_map

from tests.pretended._device import DEVICE, NAME
from tests.pretended._tensor import DeviceTensor

STRICT = "strict"
#: Those of ``ncclDataType_t``; torch sends booleans as bytes, and complex numbers as pairs.
_TYPES = {
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.bool,
}
_REFUSED = (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR)
_COLLECTIVES = """
allgather allgather_coalesced allgather_into_tensor_coalesced all_gather_single _allgather_base
all_gather_single_coalesced allreduce allreduce_coalesced alltoall alltoall_base all_to_all_single
broadcast gather recv reduce reduce_scatter reduce_scatter_single _reduce_scatter_base
reduce_scatter_single_coalesced reduce_scatter_tensor_coalesced scatter send
""".split()


class StrictGroup(dist.ProcessGroup):
    """All its verbs check what travels, and hand the numbers to a group of the host."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        gloo = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
        self.hosts = dist.ProcessGroup(store, rank, size)
        kind = dist.ProcessGroup.BackendType.GLOO
        self.hosts._register_backend(torch.device("cpu"), kind, gloo)
        self.hosts._set_default_backend(kind)
        #: How often each verb was used.
        self.used: dict[str, int] = {}

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(NAME)]

    # Torch keeps the name with the backends, of which this group has none.
    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:
        return self._name

    def getBackendName(self) -> str:  # noqa: N802  # torch calls it so
        return STRICT

    def barrier(self, *args: Any, **kwargs: Any) -> Any:
        return self.hosts.barrier()

    def recv_anysource(self, *args: Any) -> Any:
        raise RuntimeError("NCCL cannot receive from whoever comes first.")


def _verb(name: str) -> Callable[..., Any]:
    def collective(self: StrictGroup, *args: Any, **kwargs: Any) -> Any:
        self.used[name] = self.used.get(name, 0) + 1
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        for tensor in tensors:
            _check(name, tensor)
        for each in [*args, *kwargs.values()]:
            _check_reduction(name, getattr(each, "reduceOp", each))
        inner_args, inner_kwargs = tree_map(_numbers, (args, kwargs))
        work = getattr(self.hosts, name)(*inner_args, **inner_kwargs)
        # DistributedDataParallel, in a thread of autograd, asks the future for the sum. (The host
        # asks to wait for some time, which such a promise cannot.)
        is_host = threading.current_thread() is threading.main_thread()
        return work if is_host or name != "allreduce" else _promising(work, args[0])

    return collective


for _name in _COLLECTIVES:
    setattr(StrictGroup, _name, _verb(_name))


def _promising(work: Any, result: Any) -> Any:
    tensors = list(tree_leaves(result))

    def done(future: Any) -> list[Tensor]:
        future.value()  # raises what went wrong
        return tensors

    return _create_work_from_future(work.get_future().then(done))


def _numbers(value: Any) -> Any:
    return value.held if isinstance(value, DeviceTensor) else value


def _check(name: str, tensor: Tensor) -> None:
    if not isinstance(tensor, DeviceTensor):
        raise RuntimeError(f"{name}: tensors must be on {DEVICE}, got one on {tensor.device}.")
    if tensor.dtype not in _TYPES:
        raise RuntimeError(f"{name}: the type must be one of NCCL's, got {tensor.dtype}.")
    if not tensor.is_contiguous():
        raise RuntimeError(f"{name}: tensors must be contiguous, got strides {tensor.stride()}.")


def _check_reduction(name: str, operation: Any) -> None:
    is_one = isinstance(operation, dist.ReduceOp | dist.ReduceOp.RedOpType)
    if is_one and any(
        operation == refused for refused in _REFUSED
    ):  # `in` asks the other way round
        raise RuntimeError(f"{name}: the reduction must be one of NCCL's, got {operation}.")


def _create(store: Any, rank: int, size: int, timeout: Any) -> StrictGroup:
    return StrictGroup(store, rank, size, timeout)


dist.Backend.register_backend(STRICT, _create, devices=[NAME])

"""Parameters in pieces, as ``fully_shard`` (FSDP2) cuts them, and the whole ones of the graph."""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from lightning_jd.aggregators import Balancer, GramianAggregator, Method
from lightning_jd.engines import NamedParameters, Objectives, own_hooks
from lightning_jd.errors import SetupError

#: A parameter in pieces to the whole one that stands for it in forward passes.
_wholes: Any = WeakIdKeyDictionary()


def leave_out_hooks() -> None:
    """Have FSDP2 register its own hooks, in forward passes, as none of a user.

    They change no gradient. If torch moves the private methods that are wrapped here, or loads them
    later than the first forward pass, there seem to be hooks, and rows take one pass each.
    """
    state: Any = getattr(sys.modules.get(_STATES), "FSDPState", None)
    for name in ("_lazy_init", "_register_pre_backward_hook"):
        method = getattr(state, name, None)
        if method is not None and not hasattr(method, _WRAPPED):
            setattr(state, name, _with_own_hooks(method))


_STATES = "torch.distributed.fsdp._fully_shard._fsdp_state"
_WRAPPED = "lightning_jd_own_hooks"


def _with_own_hooks(method: Any) -> Any:
    @wraps(method)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with own_hooks():
            return method(*args, **kwargs)

    setattr(wrapped, _WRAPPED, True)
    return wrapped


leave_out_hooks()


def show_pieces(module: nn.Module) -> None:
    """Reshard what a forward pass has left whole; a backward pass gathers it anew."""
    leave_out_hooks()
    for each in module.modules():
        if any(cls.__name__ == "FSDPModule" for cls in type(each).__mro__):
            each.reshard()  # type: ignore[operator]  # a method that `fully_shard` has added
            _note_wholes(each)


def _note_wholes(module: Any) -> None:
    """Store the whole parameters of a part that is gathered by itself.

    The public interface shows them only while they are gathered. If torch moves the private fields
    that are read here, the whole parameters are unknown, and rows take one pass each.
    """
    groups = getattr(module._get_fsdp_state(), "_fsdp_param_groups", ())
    for held in [held for group in groups for held in group.fsdp_params]:
        piece, whole = (getattr(held, name, None) for name in ("sharded_param", "_unsharded_param"))
        if isinstance(piece, Tensor) and isinstance(whole, Tensor):
            _wholes[piece] = whole


def is_sharded(named: NamedParameters) -> bool:
    """Whether some of the parameters are in pieces on several processes."""
    return any(is_distributed(tensor) for _, tensor in named)


def whole_of(tensor: Tensor) -> Tensor | None:
    """The whole parameter, whose memory is there only while it is gathered, if it is known."""
    whole: Tensor | None = _wholes.get(tensor)
    return whole


def is_cut_in_front(tensor: Any) -> bool:
    """Whether a parameter is cut along its first axis, in the order of the processes."""
    own = tensor.device_mesh.get_local_rank()
    return bool(tensor.placements[0].is_shard(0)) and local(tensor).numel() == cuts_of(tensor)[own]


def cuts_of(tensor: Any) -> list[int]:
    """How many entries of a parameter that is cut along its first axis each process has."""
    processes, length = tensor.device_mesh.size(), tensor.shape[0]
    each = -(-length // processes)
    entries = tensor.numel() // max(1, length)
    return [entries * max(0, min(each, length - each * rank)) for rank in range(processes)]


def check_pieces(named: NamedParameters, processes: int) -> None:
    for name, tensor in named:
        if not is_distributed(tensor):
            found = "is not in pieces at all"
        elif tensor.device_mesh.ndim != 1 or tensor.device_mesh.size() != processes:
            found = f"is on {tensor.device_mesh}"
        elif not tensor.placements[0].is_shard():
            found = f"is placed by {tensor.placements[0]}"
        else:
            continue
        raise SetupError(
            f"Every parameter must be cut into one piece for each of the {processes} processes, "
            f"got {name!r}, which {found}. Call `fully_shard` on the whole module last, with a "
            "mesh of one dimension over all processes and without tensor parallelism."
        )


def is_distributed(tensor: Tensor) -> TypeGuard[Any]:
    """Whether it is a ``DTensor``, told without the import, which takes seconds."""
    return hasattr(tensor, "device_mesh")


def local(tensor: Tensor) -> Tensor:
    """The piece of this process itself, not a copy."""
    with torch.no_grad():
        piece: Tensor = tensor.to_local() if is_distributed(tensor) else tensor
    return piece


def in_pieces(piece: Tensor, like: Tensor) -> Tensor:
    gradient = torch.empty_like(like)
    local(gradient).copy_(piece)
    return gradient


def differentiated(objectives: Objectives, named: NamedParameters, weights: Tensor) -> Tensor:
    """This process's columns of the mean over processes of ``weights @ rows``, by one pass."""
    before = [tensor.grad for _, tensor in named]
    try:
        for _, tensor in named:
            tensor.grad = None
        # All losses, though most have weight zero: every process must run through all of its graph.
        torch.autograd.backward(
            objectives.outputs,  # type: ignore[arg-type]  # tensors and edges may be mixed
            list(objectives.cotangents(weights)),
            retain_graph=True,
        )
        found = [torch.zeros_like(p) if p.grad is None else p.grad for _, p in named]
        return torch.cat([local(gradient).flatten() for gradient in found])
    finally:
        for (_, tensor), gradient in zip(named, before, strict=True):
            tensor.grad = gradient


def unsupported_by_pieces(method: Method) -> str | None:
    """Why a method cannot work with parameters in pieces, and what can; ``None`` if it can."""
    if method.at_features:
        return (
            f"With parameters in pieces, {method.label} cannot work: a backward pass must run "
            "through the whole graph, and cannot end at the features. Choose the aggregator "
            "itself, or strategy='ddp'."
        )
    if not isinstance(method, GramianAggregator | Balancer):
        return (
            "With parameters in pieces, the aggregator must be a weighting of the rows, got "
            f"{method.label}, which needs the whole Jacobian on one process. Choose another one "
            "('upgrad'), or strategy='ddp'."
        )
    return None

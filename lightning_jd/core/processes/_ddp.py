"""DistributedDataParallel: which losses come from such a model, and who reduces their gradients.

A forward pass through DistributedDataParallel leaves a note in the autograd graph. So a loop may
pass the wrapped model, the module inside or its parameters: the losses tell that they belong to all
processes. Losses of a model that is not wrapped stay those of one process.

With ``static_graph=True`` it learns in its first backward pass which parameters are used, and
reduces all gradients at the end of that pass. For us that pass only differentiates losses, whose
weights are not known yet. So the first reduction is held, and started with the delivery.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _find_tensors

from lightning_jd.core.processes._delivery import COMPLETE, Delivery
from lightning_jd.core.processes._pool import Pool
from lightning_jd.engines import NamedParameters, Objectives, nodes_below, own_hooks
from lightning_jd.errors import SetupError

_NOTE = "lightning_jd.forward"


class _Forward(NamedTuple):
    """A forward pass; its backward pass reduces gradients unless it was inside of ``no_sync()``."""

    wrapper: ref[DistributedDataParallel]
    module: ref[nn.Module]
    processes: int
    synchronises: bool


class Reduction(NamedTuple):
    """The model that reduces gradients (``None``: none, or several), and the delivery to it."""

    wrapper: DistributedDataParallel | None
    delivery: Delivery


def _leave_note(wrapper: DistributedDataParallel, _: Any, output: Any) -> None:
    if torch.compiler.is_compiling():
        return
    group = wrapper.process_group
    forward = _Forward(
        ref(wrapper), ref(wrapper.module), group.size(), wrapper.require_backward_grad_sync
    )
    for tensor in _find_tensors(output):
        if tensor.grad_fn is not None:
            tensor.grad_fn.metadata[_NOTE] = forward


def _on_registration(parent: nn.Module, name: str, _: nn.Module | None) -> None:
    if name == "module" and isinstance(parent, DistributedDataParallel):
        parent.register_forward_hook(_leave_note)


def watch() -> None:
    """Have every DistributedDataParallel, present or future, leave notes."""
    with own_hooks():
        register_module_module_registration_hook(_on_registration)
    if dist.is_available() and dist.is_initialized():
        for each in gc.get_objects():
            if isinstance(each, DistributedDataParallel):
                each.register_forward_hook(_leave_note)


def unwrapped(model: Any) -> Any:
    """The module inside of what DistributedDataParallel, ``torch.compile`` or Fabric returns."""
    while isinstance(model, nn.Module):
        parts = model._modules
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif (inside := parts.get("_original_module") or parts.get("_orig_mod")) is not None:
            model = inside
        else:
            break
    return model


def reduction_of(model: Any, objectives: Objectives, named: NamedParameters) -> Reduction | None:
    """The reduction of the gradients of some losses; ``None`` if they belong to one process."""
    size, wrapper = Pool().size, _wrapper_in(model)
    if size == 1:  # the wrapper of a single process counts backward passes, too
        return None if wrapper is None else Reduction(wrapper, COMPLETE)
    ids = {id(tensor) for _, tensor in named}
    found = {}
    for forward in _forwards(objectives):
        module = forward.module()
        if module is not None and ids & (owned := {id(tensor) for tensor in module.parameters()}):
            found[id(module)] = forward
            if ids <= owned:
                break
    if not found and wrapper is None:
        return None
    for processes in [each.processes for each in found.values()] or [wrapper.process_group.size()]:
        if processes != size:
            raise SetupError(
                "DistributedDataParallel must have the default process group in Jacobian descent, "
                f"got one of {processes} processes of {size}. Remove its argument `process_group`."
            )
    if len(found) != 1:
        hides = bool(wrapper) and wrapper.find_unused_parameters
        return Reduction(wrapper, Delivery(everywhere=not hides))
    forward = next(iter(found.values()))
    wrapper = forward.wrapper()
    if wrapper is None:
        return Reduction(None, Delivery())
    delivery = delivery_to(wrapper)
    reduced = {id(tensor) for tensor in wrapper.module.parameters()}
    # Otherwise every process delivers all of it, and a mean of equals changes nothing.
    if forward.synchronises != wrapper.require_backward_grad_sync or not ids <= reduced:
        delivery = delivery._replace(averaged=False)
    return Reduction(wrapper, delivery)


def delivery_to(model: Any) -> Delivery:
    """The delivery to a model as the strategy has wrapped it.

    DistributedDataParallel takes the mean over all processes, unless it has a communication hook.
    It waits for the gradient of every parameter, unless it finds unused parameters.
    """
    everywhere = not getattr(model, "find_unused_parameters", False)
    averaged = (
        isinstance(model, DistributedDataParallel)
        and model.process_group.size() == Pool().size
        and not model._comm_hooks
        and not model.parameters_to_ignore
    )
    return Delivery(everywhere, averaged)


def check_all_reached(
    model: Any,
    named: NamedParameters,
    reached: Iterable[Tensor],
    remedy: str,
    *,
    shared: bool = False,
) -> None:
    """Raise, on all processes alike, if the reduction of gradients would never end.

    Args:
        model: The model, maybe in DistributedDataParallel, which waits for every parameter.
        named: The parameters.
        reached: Those that some loss reaches.
        remedy: How to set ``find_unused_parameters``.
        shared: Whether ``params="shared"``.
    """
    if not isinstance(model, DistributedDataParallel) or not model.require_backward_grad_sync:
        return
    if model.find_unused_parameters or model.static_graph:
        return
    delivered = {id(tensor) for tensor in reached}
    missing = [
        name
        for name, tensor in named
        if id(tensor) not in delivered and name not in model.parameters_to_ignore
    ]
    if not missing:
        return
    shown = ", ".join(map(repr, missing[:5])) + (", ..." if len(missing) > 5 else "")
    if shared:
        remedy += ", and name the shared parameters by a pattern, such as params='trunk.*'"
    raise SetupError(
        f"DistributedDataParallel waits for a gradient of every parameter, but no loss of any "
        f"process reaches {shown} in this batch. {remedy}; or freeze what is not used with "
        "`requires_grad_(False)`."
    )


def _wrapper_in(model: Any) -> Any:
    """The DistributedDataParallel that a model is, or that it wraps."""
    while isinstance(model, nn.Module) and not isinstance(model, DistributedDataParallel):
        model = model._modules.get("_orig_mod") or model._modules.get("_forward_module")
    return model if isinstance(model, DistributedDataParallel) else None


def _forwards(objectives: Objectives) -> Iterator[_Forward]:
    """The notes in the graph of some losses, those above before those below."""
    nodes: Iterable[Any] = nodes_below(objectives)
    for node in nodes:
        if (forward := node.metadata.get(_NOTE)) is not None:
            yield forward


@contextmanager
def first_reduction_held(model: Any) -> Iterator[None]:
    """Neither a forward nor a backward pass inside starts the first reduction of a static graph."""
    if not _is_first(model):
        yield
        return
    model._static_graph_delay_allreduce_enqueued = True
    try:
        yield
    finally:
        model._static_graph_delay_allreduce_enqueued = False


def start_first_reduction(model: Any, scalar: Tensor) -> None:
    """Have the backward pass of ``scalar`` end with the first reduction, if that is still due.

    It is not for a micro-batch that is accumulated without one.
    """
    if not _is_first(model) or not model.require_backward_grad_sync:
        return
    reduce = model.reducer._delay_all_reduce
    scalar.register_hook(lambda _: Variable._execution_engine.queue_callback(reduce))
    model._static_graph_delay_allreduce_enqueued = True


def _is_first(model: Any) -> bool:
    static = getattr(model, "static_graph", False)
    return bool(static) and not model._static_graph_delay_allreduce_enqueued

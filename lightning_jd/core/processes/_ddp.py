"""DistributedDataParallel: which losses come from such a model, and who reduces their gradients.

A forward pass through DistributedDataParallel leaves a note in the autograd graph. So a loop may
pass the wrapped model, the module inside or its parameters: the losses tell that they belong to all
processes. Losses of a model that is not wrapped stay those of one process.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any, NamedTuple
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _find_tensors

from lightning_jd.core.processes._delivery import Delivery
from lightning_jd.core.processes._pool import Pool
from lightning_jd.engines import NamedParameters, Objectives, own_hooks
from lightning_jd.errors import SetupError

_NOTE = "lightning_jd.forward"


class _Forward(NamedTuple):
    """A forward pass through DistributedDataParallel.

    Attributes:
        wrapper: The wrapped model, which may be gone.
        module: The module inside.
        processes: The number of processes.
        synchronises: Whether the backward pass reduces gradients: not inside of ``no_sync()``.
    """

    wrapper: ref[DistributedDataParallel]
    module: ref[nn.Module]
    processes: int
    synchronises: bool


class Reduction(NamedTuple):
    """The reduction of gradients over all processes.

    Attributes:
        wrapper: The model that reduces them; ``None`` if there is none (any more), or several.
        delivery: What each process delivers.
    """

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
    """Who reduces the gradients of some losses; ``None`` if they belong to this process alone.

    Args:
        model: What the user has passed as the model.
        objectives: The losses.
        named: The parameters.

    Raises:
        SetupError: If the processes of the model are only some of those that there are.
    """
    size = Pool().size
    if size == 1:
        return None
    ids = {id(tensor) for _, tensor in named}
    found = {}
    for forward in _forwards(objectives):
        module = forward.module()
        if module is not None and ids & (owned := {id(tensor) for tensor in module.parameters()}):
            found[id(module)] = forward
            if ids <= owned:
                break
    wrapper = _wrapper_in(model)
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
    """What becomes of the gradients of this process.

    DistributedDataParallel takes the mean over all processes, unless it was told to do something
    else. It waits for the gradient of every parameter, unless it has looked for those that the
    losses of this process do not reach.

    Args:
        model: The model as the strategy has wrapped it.
    """
    everywhere = not getattr(model, "find_unused_parameters", False)
    averaged = (
        isinstance(model, DistributedDataParallel)
        and model.process_group.size() == Pool().size
        and not model._comm_hooks
        and not model.parameters_to_ignore
    )
    return Delivery(everywhere, averaged)


def _wrapper_in(model: Any) -> Any:
    """The DistributedDataParallel that a model is, or that it wraps."""
    while isinstance(model, nn.Module) and not isinstance(model, DistributedDataParallel):
        model = model._modules.get("_orig_mod") or model._modules.get("_forward_module")
    return model if isinstance(model, DistributedDataParallel) else None


def _forwards(objectives: Objectives) -> Iterator[_Forward]:
    """The notes in the graph of some losses, those nearest to them first."""
    layer: list[Any] = [
        output.grad_fn if isinstance(output, Tensor) else output.node
        for output in objectives.outputs
    ]
    seen = set(layer)
    while layer:
        following = []
        for node in layer:
            if node is None:
                continue
            if (forward := node.metadata.get(_NOTE)) is not None:
                yield forward
            for below, _ in node.next_functions:
                if below is not None and below not in seen:
                    seen.add(below)
                    following.append(below)
        layer = following

"""DistributedDataParallel waits for a gradient of every parameter: those without are named."""

from __future__ import annotations

from typing import Any

from torch.nn.parallel import DistributedDataParallel

from lightning_jd.core._update import Update
from lightning_jd.engines import NamedParameters
from lightning_jd.errors import SetupError


def check_all_reached(
    model: Any, named: NamedParameters, update: Update, remedy: str, *, shared: bool = False
) -> None:
    """Raise, on all processes alike, if the reduction of gradients would never end.

    ``remedy`` is how to set ``find_unused_parameters``; ``shared`` is whether ``params="shared"``.
    """
    if not isinstance(model, DistributedDataParallel) or not model.require_backward_grad_sync:
        return
    if model.find_unused_parameters or model.static_graph:
        return
    delivered = {id(tensor) for tensor in update.params}
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

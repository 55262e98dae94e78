"""DistributedDataParallel waits for a gradient of every parameter: who gets none is named."""

from __future__ import annotations

from typing import Any

from torch.nn.parallel import DistributedDataParallel

from lightning_jd.core import Update
from lightning_jd.engines import NamedParameters
from lightning_jd.errors import SetupError
from lightning_jd.surfaces._settings import Settings


def check_all_reached(
    model: Any, named: NamedParameters, update: Update, settings: Settings
) -> None:
    """Raise if the reduction of gradients would never end, which leaves every replica on its own.

    Args:
        model: What the strategy has wrapped.
        named: The parameters that require a gradient.
        update: The gradients that are about to be delivered, the same parameters on all processes.
        settings: What was asked for.

    Raises:
        SetupError: On all processes alike, with the parameters and the remedy.
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
    remedy = "Set strategy='ddp_find_unused_parameters_true' (or `find_unused_parameters=True`)"
    if settings.params == "shared":
        remedy += ", and name the shared parameters by a pattern, such as params='trunk.*'"
    raise SetupError(
        f"DistributedDataParallel waits for a gradient of every parameter, but no loss of any "
        f"process reaches {shown} in this batch. {remedy}; or freeze what is not used with "
        "`requires_grad_(False)`."
    )

"""What cannot work is refused before the first batch, with the reason and what to do instead."""

from __future__ import annotations

from typing import Any

from lightning_jd.errors import SetupError
from lightning_jd.surfaces._settings import Settings

_SHARDED = "the parameters are in pieces on other devices while rows are computed"
_XLA = "XLA compiles the whole step, and which rows are active depends on the data"
#: Name of a strategy class to the reason; names, because there are two packages with such classes.
REFUSED = {
    "DeepSpeedStrategy": "DeepSpeed runs its own backward pass on the loss",
    "FSDPStrategy": _SHARDED,
    "ModelParallelStrategy": _SHARDED,
    "SingleDeviceXLAStrategy": _XLA,
    "XLAStrategy": _XLA,
}

SHARED_IS_HIDDEN = (
    "params='shared' cannot work with `{}=True`, which hides what task reaches what parameter. "
    "Leave it out (a parameter that the losses of one process do not reach gets its gradient from "
    "the others), or give a name pattern as `params`."
)


def check_supported(trainer: Any, module: Any, settings: Settings) -> None:
    """Refuse strategies and options that cannot work together.

    Raises:
        SetupError: With the reason and the remedy.
    """
    strategy = trainer.strategy
    ancestors = {cls.__name__ for cls in type(strategy).__mro__}
    for name in ancestors & REFUSED.keys():
        raise SetupError(
            f"Jacobian descent cannot work with {name}: {REFUSED[name]}. "
            "Use one device, or strategy='ddp'."
        )
    if trainer.world_size > 1 and "DDPStrategy" not in ancestors:
        raise SetupError(
            "Jacobian descent on several processes must run with strategy='ddp' or 'jd_ddp', got "
            f"{type(strategy).__name__}, which may combine gradients in a way that is unknown."
        )
    options = getattr(strategy, "_ddp_kwargs", {})
    if options.get("find_unused_parameters") and settings.params == "shared":
        raise SetupError(SHARED_IS_HIDDEN.format("find_unused_parameters"))
    accumulates = trainer.accumulate_grad_batches > 1 and settings.accumulation == "batch"
    if options.get("static_graph") and accumulates:
        raise SetupError(
            "`static_graph=True` cannot work with `accumulate_grad_batches` > 1: it takes every "
            "backward pass for one that reduces gradients. Leave it out, or set "
            "accumulation='step'."
        )
    if settings.accumulation == "step" and not module.automatic_optimization:
        raise SetupError(
            "accumulation='step' must know which batches belong to one step, and in manual "
            "optimization only your code does. Set accumulation='batch', or call "
            "`manual_backward` once with the losses of the whole step."
        )

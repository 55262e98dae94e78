"""Refuses unsupported strategies and options before the first batch, with reason and remedy."""

from __future__ import annotations

from typing import Any

from lightning_jd.aggregators import Method
from lightning_jd.core import Nonfinite, unsupported_by_pieces
from lightning_jd.engines import Select
from lightning_jd.errors import SetupError
from lightning_jd.surfaces._settings import Settings

_XLA = "XLA compiles the whole step, and which rows are active depends on the data"
#: Name of a strategy class to the reason; names, because there are two packages with such classes.
REFUSED = {
    "DeepSpeedStrategy": "DeepSpeed runs its own backward pass on the loss, and ZeRO-3 gathers "
    "parameters for that pass only",
    "FSDPStrategy": "FSDP1 flattens the parameters of several layers into one and expects one "
    "backward pass per forward pass; FSDP2, which is `ModelParallelStrategy`, works",
    "SingleDeviceXLAStrategy": _XLA,
    "XLAStrategy": _XLA,
}

SHARED_IS_HIDDEN = (
    "params='shared' cannot be combined with `{}=True`, which hides which task reaches which "
    "parameter. Use a name pattern as `params`; or remove the option, if in every batch the "
    "losses of at least one process reach every parameter."
)
STATIC_ACCUMULATES = (
    "`static_graph=True` cannot be combined with gradient accumulation: it expects every backward "
    "pass to reduce gradients. Remove it"
)


def check_object(candidate: object, cls: type) -> None:
    """Raise an error if the Trainer was given the class instead of an object.

    Lightning then calls its methods with the Trainer in the place of ``self``.

    Raises:
        SetupError: With the remedy.
    """
    if not isinstance(candidate, cls):
        name = cls.__name__
        raise SetupError(
            f"`callbacks` must hold an object, got the class {name}. Call it: {name}()."
        )


def check_supported(trainer: Any, module: Any, settings: Settings) -> None:
    """Raise an error for unsupported strategies and combinations of options.

    Raises:
        SetupError: With the reason and the remedy.
    """
    strategy = trainer.strategy
    ancestors = {cls.__name__ for cls in type(strategy).__mro__}
    for name in ancestors & REFUSED.keys():
        raise SetupError(
            f"Jacobian descent does not support {name}: {REFUSED[name]}. Use one device, or "
            "strategy='ddp'."
        )
    if "ModelParallelStrategy" in ancestors:
        check_sharded(settings.params, settings.nonfinite, settings.aggregator)
    elif trainer.world_size > 1 and "DDPStrategy" not in ancestors:
        raise SetupError(
            "Jacobian descent on several processes requires strategy='ddp', 'jd_ddp' or "
            f"ModelParallelStrategy, got {type(strategy).__name__}, which may combine gradients in "
            "another way."
        )
    options = getattr(strategy, "_ddp_kwargs", {})
    if options.get("find_unused_parameters") and settings.params == "shared":
        raise SetupError(SHARED_IS_HIDDEN.format("find_unused_parameters"))
    accumulates = trainer.accumulate_grad_batches > 1 and settings.accumulation == "batch"
    if options.get("static_graph") and accumulates:
        raise SetupError(f"{STATIC_ACCUMULATES}, or set accumulation='step'.")
    if settings.accumulation == "step" and not module.automatic_optimization:
        raise SetupError(
            "accumulation='step' must know which batches form one step; in manual optimization "
            "only your code knows. Set accumulation='batch', or call `manual_backward` once with "
            "the losses of the whole step."
        )


def check_sharded(params: Select, nonfinite: Nonfinite, method: Method) -> None:
    """Raise an error for options that sharded parameters (FSDP2) do not support.

    Raises:
        SetupError: With the reason and the remedy.
    """
    if params == "shared":
        raise SetupError(
            "params='shared' cannot be combined with ModelParallelStrategy, which hides which "
            "task reaches which parameter. Use a name pattern as `params`."
        )
    if nonfinite == "skip":
        raise SetupError(
            "nonfinite='skip' cannot be combined with ModelParallelStrategy: all processes run "
            "every backward pass together, so none can drop its part. Set nonfinite='raise'."
        )
    if problem := unsupported_by_pieces(method):
        raise SetupError(problem)

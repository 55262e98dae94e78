"""The flag on a module without the mixin, found through the callbacks entry point."""

from __future__ import annotations

from typing import Any

from lightning_jd.surfaces.module import JDModuleMixin, callback_for


class FlagCallback:
    """Looks for ``jacobian_descent`` on the module at the start of fit, and does nothing else.

    Lightning adds one to every Trainer, through the entry point. It has no state and no effect
    unless the module has the flag (or ``configure_jacobian_descent``).
    """

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Add the callback that the module asks for."""
        if stage != "fit" or isinstance(pl_module, JDModuleMixin):
            return  # the mixin adds its callback itself
        callback = callback_for(pl_module)
        if callback is None:
            return
        if callback not in trainer.callbacks:
            trainer.callbacks.append(callback)
        callback.setup(trainer, pl_module, stage)  # a second call, by the Trainer, does nothing


def for_lightning_pytorch() -> list[Any]:
    """The factory of the entry point of ``lightning.pytorch``."""
    from lightning_jd.surfaces.lightning_pytorch import JDFlag

    return [JDFlag()]


def for_pytorch_lightning() -> list[Any]:
    """The factory of the entry point of ``pytorch_lightning``."""
    from lightning_jd.surfaces.pytorch_lightning import JDFlag

    return [JDFlag()]

"""The strategies ``jd`` and ``jd_ddp``, without the base classes of either Lightning package.

Lightning saves callbacks in checkpoints, but not strategies. So a strategy adds the callback to the
Trainer, and the callback does the work.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from typing_extensions import override

from lightning_jd.errors import SetupError
from lightning_jd.surfaces._settings import Settings, TakesSettings
from lightning_jd.surfaces.callback import JacobianDescent

#: Lightning's strategy, from the package of the Trainer, follows these classes in the MRO.
_Strategy: Any = object


class AddsCallback(TakesSettings, _Strategy):  # type: ignore[misc]  # of either package
    """Adds :class:`~lightning_jd.JacobianDescent` to the callbacks of the Trainer."""

    #: The class of the callback, from the same package.
    _callback_class: ClassVar[type[JacobianDescent]]
    #: The base class, by its place in either of Lightning's packages.
    lightning_base: ClassVar[str]

    @override
    def _configure(self, settings: Settings) -> None:
        #: The callback; its ``report`` describes the last update.
        self.jacobian_descent = self._callback_class.with_settings(settings)

    @override
    def __repr__(self) -> str:
        """The arguments of the callback."""
        return f"{type(self).__name__}({self.jacobian_descent.settings.text()})"

    @override
    def connect(self, model: Any) -> None:
        """Connect the module, and add the callback to its Trainer."""
        super().connect(model)
        callbacks = model.trainer.callbacks
        if self.jacobian_descent not in callbacks:
            callbacks.insert(0, self.jacobian_descent)


class OnOneDevice(_Strategy):  # type: ignore[misc]  # of either package
    """Takes the device from the Trainer, and refuses several.

    Args:
        device: The device; ``None`` lets the Trainer choose.
        **kwargs: The arguments of Lightning's ``SingleDeviceStrategy``.
    """

    def __init__(self, device: str | torch.device | None = None, **kwargs: Any) -> None:
        super().__init__(device=device or "cpu", **kwargs)
        self._chosen = device is not None

    # Lightning sets the devices and nodes of a parallel strategy through these two attributes. A
    # strategy that is chosen by name has no other way to learn them.
    @property
    def parallel_devices(self) -> list[torch.device]:
        """The device; empty if the Trainer chooses it."""
        return [self._root_device] if self._chosen else []

    @parallel_devices.setter
    def parallel_devices(self, devices: list[torch.device]) -> None:
        if len(devices) > 1:
            raise SetupError(
                f"strategy='jd' must have one device, got {len(devices)}. "
                "Set devices=1, or strategy='jd_ddp'."
            )
        self._root_device = devices[0]

    @property
    def num_nodes(self) -> int:
        """Always one."""
        return 1

    @num_nodes.setter
    def num_nodes(self, nodes: int) -> None:
        if nodes > 1:
            raise SetupError(
                f"strategy='jd' must have one node, got {nodes}. Use strategy='jd_ddp'."
            )


class JDStrategy(AddsCallback, OnOneDevice):
    """Jacobian descent on one device: ``Trainer(strategy="jd")``.

    Takes the arguments of :class:`~lightning_jd.JacobianDescent`, followed by the keyword arguments
    of Lightning's ``SingleDeviceStrategy``.
    """

    strategy_name = "jd"
    lightning_base = "strategies.SingleDeviceStrategy"


class JDDDPStrategy(AddsCallback):
    """Jacobian descent on several devices: ``Trainer(strategy="jd_ddp")``.

    Takes the arguments of :class:`~lightning_jd.JacobianDescent`, followed by the keyword arguments
    of Lightning's ``DDPStrategy``.
    """

    strategy_name = "jd_ddp"
    lightning_base = "strategies.DDPStrategy"


STRATEGIES: tuple[type[AddsCallback], ...] = (JDStrategy, JDDDPStrategy)

"""The strategies, without the base classes of either of Lightning's packages.

A strategy does not reach a checkpoint, a callback does. So the strategies are a way to spell the
callback: they hand one to the Trainer, and everything else happens there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from typing_extensions import override

from lightning_jd.aggregators import Method
from lightning_jd.errors import SetupError
from lightning_jd.surfaces._settings import Accumulation, Memory, Nonfinite, RowsOption
from lightning_jd.surfaces.callback import DescentCallback

#: The strategy of Lightning behind these mixins comes from the package that the Trainer is from.
_Strategy: Any = object


class DescentStrategy(_Strategy):  # type: ignore[misc]  # of either package
    """Gives the Trainer the callback that does the work.

    Args:
        aggregator: These and the following as in :class:`~lightning_jd.JacobianDescent`.
        rows: See there.
        params: See there.
        groups: See there.
        accumulation: See there.
        nonfinite: See there.
        memory: See there.
        log: See there.
        check_replicas: See there.
        split: See there.
        weights_from: See there.
        weights_every: See there.
        **kwargs: The arguments of Lightning's strategy.
    """

    #: The class of the callback, from the same package.
    _callback_class: ClassVar[type[DescentCallback]]

    def __init__(
        self,
        aggregator: str | dict[str, Any] | Method = "upgrad",
        rows: RowsOption | None = None,
        params: str | list[str] | Callable[..., bool] = "all",
        groups: str | Callable[..., Any] | None = None,
        accumulation: Accumulation = "batch",
        nonfinite: Nonfinite = "raise",
        memory: Memory = "fast",
        log: bool | dict[str, Any] = False,
        check_replicas: int = 100,
        split: str | dict[str, Any] | None = None,
        weights_from: str = "parameters",
        weights_every: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        #: The callback; its ``report`` tells what the last update was made of.
        self.jacobian_descent = self._callback_class(
            aggregator,
            rows,
            params,
            groups,
            accumulation,
            nonfinite,
            memory,
            log,
            check_replicas,
            split,
            weights_from,
            weights_every,
        )

    @override
    def __repr__(self) -> str:
        """The arguments of the callback."""
        return f"{type(self).__name__}({self.jacobian_descent.settings.text()})"

    @override
    def connect(self, model: Any) -> None:
        """Meet the module, and through it the Trainer."""
        super().connect(model)
        callbacks = model.trainer.callbacks
        if self.jacobian_descent not in callbacks:
            callbacks.insert(0, self.jacobian_descent)


class OnOneDevice(_Strategy):  # type: ignore[misc]  # of either package
    """The part of ``jd`` that knows devices: takes the one that the Trainer found, or refuses.

    Args:
        device: The device; ``None`` for the one that the Trainer chooses.
        **kwargs: The arguments of Lightning's ``SingleDeviceStrategy``.
    """

    def __init__(self, device: str | torch.device | None = None, **kwargs: Any) -> None:
        super().__init__(device=device or "cpu", **kwargs)
        self._chosen = device is not None

    # Lightning gives its parallel strategies their devices and nodes by these two attributes. A
    # strategy that is chosen by name has no other way to learn of them.
    @property
    def parallel_devices(self) -> list[torch.device]:
        """The device, if it was given; empty if the Trainer is to choose."""
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

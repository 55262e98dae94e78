"""The device as Lightning knows it: an accelerator, and the strategy that trains on it."""

from typing import Any

import torch
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import SingleDeviceStrategy
from typing_extensions import override

from tests.pretended._device import DEVICE


class PretendedAccelerator(Accelerator):
    """One device, with as many processes on it as a strategy asks for."""

    @override
    def setup_device(self, device: torch.device) -> None:
        assert device.type == DEVICE.type

    @override
    def get_device_stats(self, device: Any) -> dict[str, Any]:
        return {}

    @override
    def teardown(self) -> None:
        pass

    @staticmethod
    @override
    def parse_devices(devices: Any) -> int:
        return int(devices)

    @staticmethod
    @override
    def get_parallel_devices(devices: int) -> list[torch.device]:
        return [DEVICE] * devices

    @staticmethod
    @override
    def auto_device_count() -> int:
        return 1

    @staticmethod
    @override
    def is_available() -> bool:
        return True

    @staticmethod
    @override
    def name() -> str:
        return DEVICE.type


def on_device(**arguments: Any) -> dict[str, Any]:
    """The arguments of a Trainer, moved to the device."""
    moved = {"devices": 1, **arguments, "accelerator": PretendedAccelerator()}
    if moved["devices"] == 1:
        moved.setdefault("strategy", SingleDeviceStrategy(DEVICE))
    precision = str(moved.get("precision", ""))
    plugins = [_placed(plugin) for plugin in moved.pop("plugins", [])]
    if precision.endswith("-mixed"):  # Lightning would take the autocast of CUDA
        plugins = [MixedPrecision(moved.pop("precision"), DEVICE.type)]
    return {**moved, "plugins": plugins} if plugins else moved


def _placed(plugin: MixedPrecision) -> MixedPrecision:
    """The same on the device, with a scaler that starts from the same scale."""
    assert plugin.scaler is not None
    scaler = torch.amp.GradScaler(
        DEVICE.type,
        init_scale=plugin.scaler.get_scale(),
        backoff_factor=plugin.scaler.get_backoff_factor(),
    )
    return MixedPrecision(plugin.precision, DEVICE.type, scaler)

"""The device as Lightning knows it: an accelerator, and the strategy that trains on it."""

from typing import Any

import torch
from lightning.pytorch.accelerators import Accelerator
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

"""Generators of the device: torch lets Python register a backend, but no generators for it."""

import weakref
from typing import Any

import torch
from typing_extensions import override

from tests.pretended._device import DEVICE, NAME

_ours: "weakref.WeakValueDictionary[int, torch.Generator]" = weakref.WeakValueDictionary()
_Original = torch.Generator


class Generator(_Original):
    """A generator that may say it is on the device, and then draws for that device alone."""

    def __new__(cls, device: Any = "cpu") -> "Generator":
        where = torch.device(device)
        pretended = where.type == DEVICE.type
        made: Any = super().__new__(cls, "cpu" if pretended else where)  # type: ignore[call-arg]
        if pretended:
            _ours[made._cdata] = made
        return made  # type: ignore[no-any-return]

    @property
    @override
    def device(self) -> torch.device:  # type: ignore[override]
        return DEVICE if _address(self) in _ours else super().device


def _address(generator: Any) -> int:
    return int(generator._cdata)


def check_generator(func: Any, generator: torch.Generator) -> None:
    """Refuse a generator of the CPU, as devices do."""
    if _address(generator) not in _ours:
        raise RuntimeError(
            f"{func}: the generator must be on {NAME}, got one on {generator.device}."
        )


torch.Generator = Generator  # type: ignore[misc]

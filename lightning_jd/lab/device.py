"""The device that work is measured on, for the time of a measurement."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lightning_jd.errors import ArgumentError

_CPU = torch.device("cpu")
_current = [_CPU]


@contextmanager
def measured_on(device: str) -> Iterator[None]:
    """Work that is made inside of the block is on a device, and clocks wait for it.

    Raises:
        ArgumentError: If there is no such device.

    Example:
        >>> with measured_on("cpu"):
        ...     print(here())
        cpu
    """
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ArgumentError(
            f"`device` must be one that torch can use here ({', '.join(available())}), got "
            f"{device!r}: {str(error).partition(chr(10))[0]}"
        ) from error
    _current.append(found)
    try:
        yield
    finally:
        _current.pop()


def available() -> list[str]:
    """The devices that torch can use here.

    Example:
        >>> available()[0]
        'cpu'
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return ["cpu"]
    count = torch.accelerator.device_count()
    return ["cpu", *(f"{accelerator.type}:{index}" for index in range(count))]


def here() -> torch.device:
    """The device of this measurement."""
    return _current[-1]


def wait_for_device() -> None:
    """A device that was asked goes on by itself: a clock is read when it is done."""
    if here().type != "cpu":
        torch.get_device_module(here()).synchronize()


def name_of_device() -> str:
    """What the device is called, for the environment of a table."""
    if here().type == "cpu":
        return "cpu"
    name = getattr(torch.get_device_module(here()), "get_device_name", None)
    return str(here()) if name is None else f"{here()}: {name()}"

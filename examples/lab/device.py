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
    _current.append(usable(device))
    try:
        yield
    finally:
        _current.pop()


def stay_on(device: str) -> None:
    """Measure on a device until the process ends: what a worker does that another one started.

    Raises:
        ArgumentError: If there is no such device.
    """
    _current.append(usable(device))


def usable(device: str) -> torch.device:
    """The device of this name, if it can compute.

    Raises:
        ArgumentError: If torch cannot use it here.

    Example:
        >>> usable("cpu")
        device(type='cpu')
    """
    try:
        found = torch.device(device)
        torch.ones(1, device=found).item()  # a device that is busy or broken says so now
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ArgumentError(
            f"`device` must be one that torch can use here ({', '.join(available())}), got "
            f"{device!r}: {str(error).partition(chr(10))[0].rstrip('.')}. Choose one of these, or "
            "install a torch that was built for that device."
        ) from error
    return found


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
        torch.get_device_module(here()).synchronize(*_which())


def name_of_device() -> str:
    """What the device is called, for the environment of a table and the key of a stored run.

    Without its number: the second of two equal devices gives what the first gives.
    """
    if here().type == "cpu":
        return "cpu"
    name = getattr(torch.get_device_module(here()), "get_device_name", None)
    return here().type if name is None else f"{here().type}: {name(*_which())}"


def properties_of_device() -> str:
    """What torch knows of the device besides: memory, processors, capability; empty of a CPU."""
    if here().type == "cpu":
        return ""
    found = getattr(torch.get_device_module(here()), "get_device_properties", None)
    build = f"built for {torch.version.cuda or torch.version.hip or here().type}"
    return build if found is None else f"{found(*_which())}, {build}"


def _which() -> tuple[torch.device, ...]:
    """The argument that tells functions of torch which of several devices is meant."""
    return () if here().index is None or here().type == "mps" else (here(),)

"""What a number depends on besides the code: the versions and the processor."""

import os
import platform
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from examples.lab.device import measured_on, name_of_device, properties_of_device

_PACKAGES = ("lightning-jd", "torch", "numpy", "lightning", "torchjd", "qpsolvers", "quadprog")


def environment(*packages: str) -> dict[str, str | int]:
    """Date, versions, processor and number of threads, to be stored beside every measurement.

    Args:
        packages: Those whose version matters besides the usual ones.

    Example:
        >>> sorted(environment())[:3]
        ['cores', 'date', 'device']
    """
    found: dict[str, str | int] = {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
    }
    found["device"] = name_of_device()
    properties = properties_of_device()
    if properties:
        found["device properties"] = properties
    return found | {package: _version(package) for package in (*_PACKAGES, *packages)}


def environment_of(device: str) -> dict[str, str | int]:
    """The same of a device.

    Raises:
        ArgumentError: If there is no such device.
    """
    with measured_on(device):
        return environment()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():  # on Linux `platform.processor()` is empty or only says "x86_64"
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()

"""The pretended device of the lab, and what only tests need of it.

To import this package is to register the device in this process, before its first backward pass.
"""

from lightning_jd.lab.pretended import (
    DEVICE,
    DeviceTensor,
    Synchronisation,
    host,
    no_synchronisation,
    operations,
    synchronisations,
    without_float64,
)

__all__ = [
    "DEVICE",
    "DeviceTensor",
    "Synchronisation",
    "host",
    "no_synchronisation",
    "operations",
    "synchronisations",
    "without_float64",
]

"""A pretended accelerator: numbers in the memory of the host, manners of a device.

Its tensors say that they are on ``pretended:0``. They refuse to mix with tensors of the CPU and to
become NumPy arrays, and everything that would make a host wait for a device is counted, with the
line of the package that asked for it. To torch it is a backend of its own (``PrivateUse1``), so
that autograd gives it a thread, dropout takes the fused path of accelerators, autocast has rules
for it and a process group may serve it alone.

A process must import this package before its first backward pass: that is when autograd starts one
thread per device that it knows. So whoever uses it does so in a process of its own.
"""

from tests.pretended._device import DEVICE
from tests.pretended._operations import Operation, operations
from tests.pretended._precision import without_float64
from tests.pretended._synchronisations import (
    Synchronisation,
    no_synchronisation,
    synchronisations,
)
from tests.pretended._tensor import DeviceTensor, host

from tests.pretended import _autocast, _factories, _generator  # isort: skip  # noqa: F401

__all__ = [
    "DEVICE",
    "DeviceTensor",
    "Operation",
    "Synchronisation",
    "host",
    "no_synchronisation",
    "operations",
    "synchronisations",
    "without_float64",
]

"""When a step would be done: a host that asks, and a device that works through a queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_jd.lab.bench._gpus import Gpu
from lightning_jd.lab.pretended import Operation

#: Seconds that the smallest kernel takes, and that a wait adds to what it waits for: orders of
#: magnitude that profilers show on all of these devices.
SMALLEST_KERNEL = 3e-6
WAIT = 20e-6


@dataclass(frozen=True)
class Timeline:
    """Seconds of one step.

    Attributes:
        total: From the first request to the last result.
        device: The sum of all kernels.
        host: What the host needs to ask for everything.
        solving: What it computes itself between two requests, while the device has nothing to do.
        waits: How often it waits.
    """

    total: float
    device: float
    host: float
    solving: float
    waits: int


def timeline(
    operations: Sequence[Operation],
    gpu: Gpu,
    per_operation: float,
    efficiency: float,
    solver: float = 1.0,
) -> Timeline:
    """Let a queue run.

    The host asks for an operation every ``per_operation`` seconds; the device begins when it was
    asked and is free, and takes what operations and bytes need at a share ``efficiency`` of its
    peak. At a wait the host stands still until the device is done. What the host computes after it
    has read something (the program of UPGrad) is as long as it was where the step was recorded, or
    ``solver`` times shorter.

    Example:
        >>> from lightning_jd.lab.bench._gpus import GPUS
        >>> kernel = Operation("mm", 0.0, 3e6, "float32", False, 0.0)  # 10 µs at full bandwidth
        >>> found = timeline([kernel] * 3, GPUS["L4"], per_operation=1e-6, efficiency=1.0)
        >>> round(1e6 * found.total), round(1e6 * found.device), round(1e6 * found.host)
        (31, 30, 3)
    """
    host = device = busy = solving = 0.0
    waits = 0
    for index, operation in enumerate(operations):
        if operation.is_wait:
            waits += 1
            host = max(host, device) + WAIT
            if operation.name in ("to host", "tolist", "item") and index + 1 < len(operations):
                gap = max(0.0, operations[index + 1].at - operation.at - per_operation)
                host, solving = host + gap / solver, solving + gap / solver
            continue
        host += per_operation
        peak = gpu.float64 if operation.dtype == "float64" else gpu.float32
        needed = max(operation.flops / peak, operation.bytes / gpu.bandwidth) / efficiency
        duration = max(needed, SMALLEST_KERNEL)
        device, busy = max(device, host) + duration, busy + duration
    asked = per_operation * sum(not operation.is_wait for operation in operations)
    return Timeline(max(host, device), busy, asked, solving, waits)

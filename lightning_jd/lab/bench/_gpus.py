"""Peak numbers of four accelerators, from the data sheets of their maker."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """What a device can do at best.

    Attributes:
        float32: Operations per second without tensor cores, as torch multiplies by default.
        float64: Operations per second.
        bandwidth: Bytes per second between memory and processors.
        source: Where the numbers are from.
    """

    float32: float
    float64: float
    bandwidth: float
    source: str


GPUS: dict[str, Gpu] = {
    "T4": Gpu(8.1e12, 0.25e12, 300e9, "NVIDIA T4 data sheet (2019): 8.1 TFLOPS, 300 GB/s"),
    "L4": Gpu(30.3e12, 0.47e12, 300e9, "NVIDIA L4 data sheet (2023): 30.3 TFLOPS, 300 GB/s"),
    "A100": Gpu(
        19.5e12, 9.7e12, 1555e9, "NVIDIA A100 data sheet (2021), 40 GB: 19.5 TFLOPS, 1,555 GB/s"
    ),
    "H100": Gpu(67e12, 34e12, 3350e9, "NVIDIA H100 data sheet (2023), SXM: 67 TFLOPS, 3.35 TB/s"),
}

"""Benchmarks of no work, in a file that a process imports quickly."""

import os
import signal
from pathlib import Path

from examples.lab.device import measured_on
from examples.lab.report import Report


def quick(repeats: int, device: str, output: Path) -> None:
    with (output / "calls").open("a") as file:
        file.write("quick ")
    with measured_on(device):
        report = Report("quick", "A table", {"n": "n"}, [{"n": repeats}])
    report.publish(output)


def failing(clock: str, device: str, output: Path) -> None:
    raise RuntimeError("out of memory")


def dying(device: str, output: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)

"""A compiled module against the same module uncompiled, both by ``Trainer.fit``."""

from __future__ import annotations

import shutil
from typing import Any

import torch

from examples.lab.bench._turns import in_turns
from examples.lab.clock import Clock, ratio
from examples.lab.device import here
from examples.lab.work.module import WorkModule
from examples.lab.work.networks import Work, transformer

_INSTANCES = 32


def compiled_ratio(repeats: int, clock: Clock) -> tuple[float, float, int]:
    """Compare a step of Jacobian descent on a compiled module with one on the module itself.

    Each runs in turns with the same uncompiled loop, so that the machine's noise cancels.

    Returns:
        The ratio, milliseconds of the uncompiled step, and the number of instances.
    """
    eager: Any = WorkModule(_work(), plain=False)
    loop, inside = in_turns(_work(), eager, "mean", repeats, clock)
    backend = "inductor" if shutil.which("g++") else "aot_eager"
    torch.compiler.reset()
    compiled: Any = torch.compile(WorkModule(_work(), plain=False), backend=backend)
    other_loop, other_inside = in_turns(_work(), compiled, "mean", repeats, clock)
    torch.compiler.reset()
    found = ratio(other_inside, other_loop) / ratio(inside, loop)
    return found, 1000 * inside.median, _INSTANCES


def _work() -> Work:
    return transformer(_INSTANCES, width=64, layers=2, length=16).to(here())

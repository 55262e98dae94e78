"""How long the backward pass of plain training takes, measured on a few steps beside ours."""

from __future__ import annotations

import time

import torch

from lightning_jd.engines import NamedParameters, Objectives, hooks_silenced

STEPS = range(3, 8)  # the first ones record and compile


def plain_milliseconds(objectives: Objectives, named: NamedParameters) -> float | None:
    """The duration of one pass of the mean of the losses; ``None`` if it cannot be taken.

    No ``.grad`` is touched and no hook runs. On an accelerator nothing is measured, because the
    host would have to wait.
    """
    tensors = [tensor for _, tensor in named if tensor.requires_grad]
    if objectives.device.type != "cpu" or not tensors:
        return None
    weights = torch.full((objectives.m,), 1 / objectives.m)
    begin = time.perf_counter()
    try:
        with hooks_silenced(tensors):
            torch.autograd.grad(
                objectives.outputs,  # type: ignore[arg-type]  # tensors and edges may be mixed
                tensors,
                objectives.cotangents(weights),
                retain_graph=True,
                allow_unused=True,
            )
    except RuntimeError:  # a graph that can be differentiated only once
        return None
    return 1000 * (time.perf_counter() - begin)

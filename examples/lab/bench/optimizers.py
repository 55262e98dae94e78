"""``bench optimizers``: what it costs to aggregate momentum and gradient."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from examples.lab.clock import CLOCKS, Clock, check_clock
from examples.lab.console import progress_bar
from examples.lab.device import here, measured_on, wait_for_device
from examples.lab.folders import writable_folder
from examples.lab.report import Report, Value
from examples.lab.threads import threads_of_torch
from lightning_jd import optim

#: Name to shapes: what reads of memory cost, and what it costs to start many kernels.
MODELS: dict[str, list[tuple[int, ...]]] = {
    "2.1 million in 16 tensors": [(512, 256)] * 16,
    "166 thousand in 80 tensors": [(64, 64), (64,)] * 40,
    "25 million in 24 tensors": [(1024, 1024)] * 24,
}
_OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "SGD": ("SGD", {"momentum": 0.9}),
    "SGD, Nesterov": ("SGD", {"momentum": 0.9, "nesterov": True}),
    "Adam": ("Adam", {}),
    "AdamW": ("AdamW", {}),
    "NAdam": ("NAdam", {}),
}
_COLUMNS = {
    "model": "parameters",
    "optimizer": "optimizer",
    "milliseconds": "ms, foreach",
    "fused": "fused",
    "sum": "sum",
    "agree": "UPGrad, rows agree",
    "conflict": "UPGrad, rows conflict",
}
_WARMUP = 4


def optimizers(
    threads: int = 1,
    clock: Clock = "cpu",
    repeats: int = 20,
    device: str = "cpu",
    output: Path = Path("results"),
) -> None:
    """Time a step of the optimizers against torch's foreach optimizers.

    Optimizers run in turns. A number is the median over rounds of the ratio to the foreach
    optimizer of the same round. Gradients agree with the momentum in all steps, or conflict with it
    in all steps; in training it is one or the other.

    Args:
        threads: Threads of torch.
        clock: "wall", or "cpu" for the processor time of all threads, which other programs disturb
            less.
        repeats: Timed rounds.
        device: Where models and data are: "cpu", "cuda", ...
        output: The folder for optimizers.json and optimizers.md.
    """
    writable_folder(output)
    rows = []
    with threads_of_torch(threads), measured_on(device):
        check_clock(clock)
        with progress_bar(total=len(MODELS) * len(_OPTIMIZERS)) as start:
            for model, shapes in MODELS.items():
                for name in _OPTIMIZERS:
                    start(f"{name}, {model}")
                    rows.append({"model": model, **measure(name, shapes, repeats, clock)})
        note = f"Multiples of the foreach optimizer ({clock} time), median of {repeats} rounds."
        title = "The cost of aggregating momentum and gradient"
        report = Report("optimizers", title, _COLUMNS, rows, (note,))
    report.publish(output)


def measure(
    name: str, shapes: Sequence[tuple[int, ...]], repeats: int, clock: Clock
) -> dict[str, Value]:
    """One line of the table."""
    kind, arguments = _OPTIMIZERS[name]
    mine, theirs = getattr(optim, kind), getattr(torch.optim, kind)
    candidates = {
        "foreach": theirs(_parameters(shapes), lr=1e-4, foreach=True, **arguments),
        "sum": mine(_parameters(shapes), lr=1e-4, aggregator="sum", **arguments),
        "agree": mine(_parameters(shapes), lr=1e-4, **arguments),
        "conflict": mine(_parameters(shapes), lr=1e-4, **arguments),
    }
    if kind != "NAdam":  # which torch has no fused kernel for
        candidates["fused"] = theirs(_parameters(shapes), lr=1e-4, fused=True, **arguments)
    now = CLOCKS[clock]
    samples: dict[str, list[float]] = {each: [] for each in candidates}
    for _ in range(_WARMUP + repeats):
        for each, optimizer in candidates.items():
            if each == "conflict":
                _turn_against_momentum(optimizer)
            wait_for_device()
            begin = now()
            optimizer.step()
            wait_for_device()
            samples[each].append(now() - begin)
    taken = {each: some[_WARMUP:] for each, some in samples.items()}
    row: dict[str, Value] = {
        each: median(a / max(b, 1e-9) for a, b in zip(some, taken["foreach"], strict=True))
        for each, some in taken.items()
    }
    return row | {"optimizer": name, "milliseconds": 1000 * median(taken["foreach"])}


def _parameters(shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    params = [torch.randn(s, generator=generator).to(here()).requires_grad_() for s in shapes]
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator).to(here())
    return params


@torch.no_grad()
def _turn_against_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Reflect the gradient of each parameter so that it opposes the momentum a little."""
    for p, state in optimizer.state.items():
        momentum = state.get("momentum_buffer", state.get("exp_avg"))
        if momentum is not None and p.grad is not None:
            product = (p.grad * momentum).sum()
            share = (product.abs() + product) / momentum.square().sum().clamp(min=1e-30)
            p.grad.sub_(share * momentum).sub_(momentum, alpha=0.01)

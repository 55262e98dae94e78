"""``bench methods``: what a step costs with each aggregator and balancer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from examples.lab.arguments import spec
from examples.lab.clock import Clock, interleaved, ratio
from examples.lab.console import progress_bar
from examples.lab.device import here, measured_on
from examples.lab.folders import writable_folder
from examples.lab.report import Report, Value
from examples.lab.threads import threads_of_torch
from examples.lab.work.networks import TrunkAndHeads, mlp_layers
from lightning_jd.aggregators import Method, available, resolve
from lightning_jd.core import backward

_WIDTHS, _BATCH = (256, 512, 512), 128


def methods(
    threads: int = 2,
    clock: Clock = "wall",
    tasks: Sequence[int] = (2, 8, 40),
    repeats: int = 20,
    device: str = "cpu",
    output: Path = Path("results"),
) -> None:
    """Time a step with every method against the plain step on the sum of the losses.

    A step is forward, backward and SGD of an MLP trunk (256-512-512, batch 128) with one linear
    head per task. All methods run in turns; a number is the median over rounds of the ratio to the
    plain step of the same round (the ratio of the means for weightsevery, whose steps differ).

    Args:
        threads: Threads of torch.
        clock: "wall", or "cpu" for the processor time of all threads, which other programs disturb
            less.
        tasks: Numbers of tasks.
        repeats: Timed rounds.
        device: Where models and data are: "cpu", "cuda", ...
        output: The folder for methods.json and methods.md.
    """
    writable_folder(output)
    with threads_of_torch(threads), measured_on(device):
        found: dict[str, dict[str, Value]] = {}
        with progress_bar(total=len(tasks)) as start:
            for m in tasks:
                start(f"{m} tasks")
                for name, cost in measure(m, repeats, clock).items():
                    found.setdefault(name, {"method": name})[str(m)] = cost
        columns = {"method": "method"} | {str(m): f"{m} tasks" for m in tasks}
        note = f"Plain steps ({clock} time), MLP trunk 256-512-512, batch 128, {repeats} rounds."
        title = "The cost of a step, by method"
        report = Report("methods", title, columns, [*found.values()], (note,))
    report.publish(output)


def measure(
    tasks: int,
    repeats: int,
    clock: Clock,
    names: Sequence[str] | None = None,
) -> dict[str, float]:
    """The cost of a step in plain steps, by name of the method (all of them, unless given)."""
    torch.manual_seed(0)
    trunk = nn.Sequential(*mlp_layers(_WIDTHS))
    model = TrunkAndHeads(trunk, _WIDTHS[-1], tasks, outputs=1).to(here())
    x, y = torch.randn(_BATCH, _WIDTHS[0]).to(here()), torch.randn(_BATCH, tasks).to(here())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def errors() -> list[Tensor]:
        return [(out[:, 0] - y[:, k]).square() for k, out in enumerate(model(x))]

    def plain() -> None:
        optimizer.zero_grad()
        torch.stack([error.mean() for error in errors()]).sum().backward()
        optimizer.step()

    def with_method(method: Method) -> None:
        optimizer.zero_grad()
        losses = errors()
        matrix = torch.stack(losses, dim=1) if method.halves else None
        backward(matrix if matrix is not None else [e.mean() for e in losses], model, method)
        optimizer.step()

    candidates: dict[str, Callable[[], object]] = {"plain": plain}
    for name in names or available():
        candidates[name] = partial(with_method, resolve(spec(name, tasks)))
    timings = interleaved(candidates, repeats=repeats, warmup=3, clock=clock)
    plain_steps = timings.pop("plain")
    found = {name: round(ratio(timing, plain_steps), 2) for name, timing in timings.items()}
    if "weightsevery" in timings:  # whose steps are not alike
        found["weightsevery"] = round(
            sum(timings["weightsevery"].samples) / sum(plain_steps.samples), 2
        )
    return found

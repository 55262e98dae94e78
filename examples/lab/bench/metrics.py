"""``bench metrics``: what it costs to look at a step, as a share of the step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from examples.lab.clock import Clock, interleaved, ratios
from examples.lab.console import progress_bar
from examples.lab.device import here, measured_on
from examples.lab.folders import writable_folder
from examples.lab.report import Report, Value
from examples.lab.threads import threads_of_torch
from examples.lab.work.paper import INPUT_SHAPES, paper_cnn
from lightning_jd.core import backward
from lightning_jd.metrics import ConflictSummary, conflict_summary

_MUST = 0.03
_COLUMNS = {
    "what": "what is computed in a step",
    "microseconds": "µs",
    "share": "% of a plain step",
    "lower": "quartile",
    "upper": "quartile",
    "mark": "at most 3%",
}


def metrics(
    threads: int = 2,
    clock: Clock = "wall",
    batch_size: int = 32,
    repeats: int = 40,
    device: str = "cpu",
    output: Path = Path("results"),
) -> None:
    """Time the metrics of one step against the plain step of the paper's CIFAR-10 network.

    The plain step is forward, backward and SGD on the mean loss of synthetic images; the metrics
    are those of one objective per image. They run in turns, and a share is the median of the shares
    of each round.

    Args:
        threads: Threads of torch.
        clock: "wall", or "cpu" for the processor time of all threads, which other programs disturb
            less.
        batch_size: Images in a batch, and so objectives.
        repeats: Timed rounds.
        device: Where models and data are: "cpu", "cuda", ...
        output: The folder for metrics.json and metrics.md.
    """
    writable_folder(output)
    with threads_of_torch(threads), measured_on(device):
        with progress_bar(total=1) as start:
            start(f"{repeats} rounds")
            rows = measure(batch_size, repeats, clock)
        report = Report("metrics", "The cost of looking", _COLUMNS, rows, (_note(clock),))
    report.publish(output)


def measure(batch_size: int, repeats: int, clock: Clock) -> list[dict[str, Value]]:
    """One line per way to look at a step."""
    torch.manual_seed(0)
    plain, losses, parameters = _training(batch_size)
    step = backward(losses(), parameters, "upgrad")
    G, w = step.gramian, step.weights
    assert G is not None
    history = ConflictSummary().to(here())
    looks: dict[str, Callable[[], object]] = {
        "all scalars, left on the device": lambda: conflict_summary(G, w),
        "all scalars, copied to the host": lambda: conflict_summary(G, w).to_dict(),
        "the same with the distance to stationarity": lambda: conflict_summary(
            G, w, stationarity=True
        ).to_dict(),
        "the metric ConflictSummary, one update": lambda: history.update(G, w),
    }
    timings = interleaved({"plain": plain, **looks}, repeats=repeats, warmup=5, clock=clock)
    rows: list[dict[str, Value]] = [
        {"what": "the plain step itself", "microseconds": 1e6 * timings["plain"].median}
    ]
    for name in looks:
        found = timings[name]
        shares = ratios(found, timings["plain"])
        rows.append(
            {
                "what": name,
                "microseconds": 1e6 * found.median,
                "share": 100 * shares.median,
                "lower": 100 * shares.lower,
                "upper": 100 * shares.upper,
                "mark": "yes" if shares.median <= _MUST else "missed",
            }
        )
    return rows


def _training(
    batch_size: int,
) -> tuple[Callable[[], None], Callable[[], Tensor], list[torch.nn.Parameter]]:
    network = paper_cnn("cifar10").to(here())
    images = torch.randn(batch_size, *INPUT_SHAPES["cifar10"]).to(here())
    labels = torch.randint(10, (batch_size,)).to(here())
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)

    def losses() -> Tensor:
        return F.cross_entropy(network(images), labels, reduction="none")

    def plain() -> None:
        optimizer.zero_grad()
        losses().mean().backward()
        optimizer.step()

    return plain, losses, list(network.parameters())


def _note(clock: str) -> str:
    return (
        f"{'Wall' if clock == 'wall' else 'Processor'} time. A logger copies to the host only in "
        "the steps that it logs; the callback computes nothing in between."
    )

"""Record what a step asks of a device, on a pretended one, in a process of its own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from multiprocessing import get_context

import torch

from lightning_jd.lab.pretended import Operation
from lightning_jd.lab.work.networks import Work, cnn, mlp, resnet18, transformer
from lightning_jd.lab.work.steps import OPPONENTS, make_step

Recorder = Callable[[str, int, str, str], "Sequence[Operation] | None"]

LAUNCHES = "launches: "  # before the name of a line of ``bench launches``, with its own batch
#: Name of the network to what makes it for a batch.
WORKS: dict[str, Callable[[int], Work]] = {
    "svhn": lambda batch: cnn("svhn", batch),
    "cifar10": lambda batch: cnn("cifar10", batch),
    "eurosat": lambda batch: cnn("eurosat", batch),
    "mnist": lambda batch: cnn("mnist", batch),
    "mlp": mlp,
    "resnet18": resnet18,
    "transformer": lambda batch: transformer(batch, width=256, layers=12),
}
_UNTUNED = 4  # the first steps of a kind of graph check themselves and try variants
_RECORDED = 3


@contextmanager
def recorder() -> Iterator[Recorder]:
    """A function that records one step in another process: (network, batch, engine, method)."""
    # To know the device from its start, the process is a new one, and no copy of this one.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield lambda *step: pool.submit(_record, *step).result()


def _record(network: str, batch: int, engine: str, method: str) -> list[Operation] | None:
    """Operations of a steady step; of a few, the one whose host was least disturbed."""
    from lightning_jd.lab.pretended import DEVICE, operations

    warnings.simplefilter("ignore")  # TorchJD's vmap tells what it costs, as the table does
    torch.set_num_threads(1)
    torch.manual_seed(0)
    work = _made(network, batch).to(DEVICE)
    step = make_step(engine, work, method)
    if step is None:
        return None
    is_opponent = engine in OPPONENTS
    found: list[list[Operation]] = []
    try:
        for _ in range(1 if is_opponent else _UNTUNED):
            step()
        # Only what the host solves in between is a duration, which may be disturbed.
        for _ in range(_RECORDED if method == "upgrad" and engine != "autojac" else 1):
            with operations() as recorded:
                step()
            found.append(recorded)
    except Exception:
        if not is_opponent:
            raise
        return None
    return min(found, key=lambda each: _reading(each))


def _made(network: str, batch: int) -> Work:
    if network.startswith(LAUNCHES):
        from lightning_jd.lab.bench.launches import CASES

        return CASES[network.removeprefix(LAUNCHES)].ordinary()
    return WORKS[network](batch)


def _reading(recorded: Sequence[Operation]) -> float:
    """How long the host computed itself, after it had read something."""
    return sum(after.at - before.at for before, after in pairwise(recorded) if before.is_wait)

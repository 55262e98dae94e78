"""``bench ddp``: what Jacobian descent adds to DistributedDataParallel."""

from __future__ import annotations

import os
import queue
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from examples.lab.bench._layers import Kind, layers_of
from examples.lab.bench._volume import volume
from examples.lab.clock import interleaved, ratio
from examples.lab.console import progress_bar
from examples.lab.device import here, measured_on, stay_on, usable
from examples.lab.folders import writable_folder
from examples.lab.report import Report, Value
from examples.lab.work.networks import Work, cnn, mean_of, mlp, mlp_tasks
from lightning_jd.aggregators import resolve
from lightning_jd.core import collect, compute_update, delivery_to, objectives_of
from lightning_jd.engines import named_parameters_of
from lightning_jd.errors import ArgumentError, JDError


@dataclass(frozen=True)
class Case:
    """One line of the table: a model, and what its rows are."""

    kind: Kind
    build: Callable[[], Work]


#: Functions of modules, so that they can be sent to processes.
def _mlp() -> Work:
    return mlp(32)


def _cnn() -> Work:
    return cnn("cifar10", 16)


def _tasks() -> Work:
    return mlp_tasks(8)


CASES: dict[str, Case] = {
    "MLP 784-1024-1024-10, 32 instances each": Case("instances", _mlp),
    "CNN for CIFAR-10, 16 instances each": Case("instances", _cnn),
    "MLP trunk, 8 tasks": Case("tasks", _tasks),
    "MLP 784-1024-1024-10, ranks": Case("ranks", _mlp),
    "CNN for CIFAR-10, ranks": Case("ranks", _cnn),
}
_FURTHER = (8, 64, 1024)
_COLUMNS = {
    "work": "work",
    "plain_ms": "plain DDP ms",
    "jd_ms": "UPGrad ms",
    "ratio": "UPGrad / plain",
    "cpu_ratio": "the same, CPU time",
    "gradient_mb": "gradient MB",
    "computed_mb": "added MB, computed",
    "measured_mb": "added MB, measured",
    **{f"at_{R}_mb": f"computed at {R}" for R in _FURTHER},
}


def ddp(
    processes: int = 2,
    threads: int = 1,
    repeats: int = 10,
    device: str = "cpu",
    output: Path = Path("results"),
) -> None:
    """Time a step with UPGrad on several processes against DistributedDataParallel alone.

    The processes are real ones on this machine: on the CPU with the gloo backend, on accelerators
    with that of their maker (NCCL) and a device each. They meet through a file. A step is forward,
    Gramian of the rows of all processes, weights, gradients, and their reduction by
    DistributedDataParallel. What a process sends is counted where it is sent, and computed from the
    sizes of the layers; what DistributedDataParallel sends (the gradient, in both cases) is not
    included. The last columns are computed for more processes than there are.

    Args:
        processes: How many processes to start.
        threads: Threads of torch in each of them.
        repeats: Timed steps of each kind.
        device: The kind of device, of which every process takes one: "cpu", "cuda", ...
        output: The folder for ddp.json and ddp.md.
    """
    if processes < 2 or threads < 1 or repeats < 1:
        raise ArgumentError(
            "`processes` must be at least 2, and `threads` and `repeats` at least 1, got "
            f"{processes}, {threads} and {repeats}."
        )
    writable_folder(output)
    check_devices(device, processes)
    rows = []
    with measured_on(device):
        with progress_bar(total=len(CASES)) as start:
            for name, case in CASES.items():
                start(name)
                rows.append({"work": name, **measure(case, processes, threads, repeats, device)})
        notes = (
            f"{processes} processes, {threads} threads each, {_backend(device)}; medians of "
            f"{repeats} steps by the wall clock, the two in turns. CPU time (without accelerators) "
            "is that of all threads of a process, in steps of their own, on average over the "
            "processes. Megabytes (10^6) that a process sends in a step, on average over the "
            "processes.",
        )
        report = Report("ddp", "Jacobian descent against plain DDP", _COLUMNS, rows, notes)
    report.publish(output)


def check_devices(device: str, processes: int) -> None:
    """Raise unless every process can have a device of its own, which NCCL demands.

    Raises:
        ArgumentError: If there is no such kind of device, or too few.
    """
    found = usable(device)
    if found.index is not None:
        raise ArgumentError(
            f"`device` must be a kind of device, of which every process takes one, got {device!r}. "
            f"Write {found.type!r}."
        )
    count = processes if found.type == "cpu" else torch.get_device_module(found).device_count()
    if count < processes:
        raise ArgumentError(
            f"`processes` must be at most {count} on {device!r}, because processes that exchange "
            f"gradients need a device each, got {processes}. Run it with more devices, or with "
            "--device cpu."
        )


def _backend(device: str) -> str:
    return str(dist.get_default_backend_for_device(torch.device(device)))


def measure(
    case: Case, processes: int, threads: int, repeats: int, device: str = "cpu"
) -> dict[str, Value]:
    """One line of the table.

    Raises:
        JDError: If a process fails.
    """
    context = mp.get_context("spawn")
    results: Any = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (processes, folder, case, threads, repeats, device, results)
        running: Any = spawn(_enter, arguments, nprocs=processes, join=False)
        try:
            while not running.join(timeout=0.1):
                pass
        except Exception as error:
            raise JDError(f"A process of the benchmark has failed: {error}") from error
        found: dict[str, Value] = _received(results)
    return found


def _received(results: Any) -> dict[str, Value]:
    try:
        found: dict[str, Value] = results.get(timeout=10)
    except queue.Empty as error:
        raise JDError("The processes of the benchmark have ended without a result.") from error
    return found


def _enter(
    rank: int,
    processes: int,
    folder: str,
    case: Case,
    threads: int,
    repeats: int,
    device: str,
    results: Any,
) -> None:
    torch.set_num_threads(threads)
    if device != "cpu":
        torch.get_device_module(device).set_device(rank)  # objects travel through it, too
        stay_on(f"{device}:{rank}")
    store = f"file://{folder}/store"
    dist.init_process_group(_backend(device), init_method=store, rank=rank, world_size=processes)
    try:
        found = measure_here(case, processes, repeats)
        if rank == 0:
            results.put(found)
    finally:
        dist.destroy_process_group()
    results.close()
    results.join_thread()
    # Now and then a thread of torch aborts a process that ends in the ordinary way, and the others
    # with it.
    os._exit(0)


def measure_here(case: Case, processes: int, repeats: int) -> dict[str, Value]:
    """One line of the table, measured by every process of a group on a device of its own."""
    torch.manual_seed(dist.get_rank())
    # DistributedDataParallel gives all the parameters of the first.
    work = case.build().to(here())
    model = DistributedDataParallel(work.model)
    named = named_parameters_of(work.model)
    rows: Literal["ranks"] | None = "ranks" if case.kind == "ranks" else None
    method = resolve("upgrad")
    sent: Mapping[str, int] = {}

    def plain() -> None:
        model.zero_grad(set_to_none=True)
        mean_of(work.losses(model)).backward()

    def descent() -> None:
        nonlocal sent
        model.zero_grad(set_to_none=True)
        losses = work.losses(model)
        objectives = objectives_of(mean_of(losses) if case.kind == "ranks" else losses, rows)
        collected = collect(named, keeps=case.kind == "ranks")
        collected.add(objectives)
        update = compute_update(collected, method, delivery=delivery_to(model))
        update.surrogate().backward()
        sent = update.report.bytes_sent

    ways = {"plain": plain, "jd": descent}
    times = interleaved(ways, repeats=repeats, warmup=3)
    cpu_ratio = None
    if here().type == "cpu":  # that clock does not see a device
        own = interleaved(ways, repeats=repeats, clock="cpu")
        cpu_ratio = _mean(ratio(own["jd"], own["plain"]))
    added = _mean(sum(sent.get(purpose, 0) for purpose in _ADDED))
    m = 1 if case.kind == "ranks" else _count(work)
    layers = layers_of(work.model, work.x, case.kind)
    computed = {R: volume(case.kind, m, layers, R) for R in (processes, *_FURTHER)}
    return {
        "m": m,
        "plain_ms": 1e3 * times["plain"].median,
        "jd_ms": 1e3 * times["jd"].median,
        "ratio": ratio(times["jd"], times["plain"]),
        "cpu_ratio": cpu_ratio,
        "gradient_mb": computed[processes]["gradient"] / 1e6,
        "computed_mb": _megabytes(computed[processes]),
        "measured_mb": added / 1e6,
        **{f"at_{R}_mb": _megabytes(computed[R]) for R in _FURTHER},
    }


def _mean(number: float) -> float:
    """Over the processes; the number of bytes of a step is too large for float32 to add exactly."""
    total = torch.tensor(number, device=here(), dtype=torch.float64)
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


#: What Jacobian descent sends beyond the gradient; how processes agree on names is left out.
_ADDED = ("rows", "factors", "gramian", "weights")


def _megabytes(sent: Mapping[str, float]) -> float:
    return sum(sent[purpose] for purpose in _ADDED) / 1e6


def _count(work: Work) -> int:
    with torch.no_grad():
        return len(work.losses())

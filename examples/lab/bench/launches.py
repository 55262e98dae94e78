"""``bench launches``: what a step costs where tensors are so small that work is free.

Small kernels wait for the host on an accelerator: there, the dispatch of operations and Python
decide, and so does the number of kernels.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.lab.bench._kernels import kernels_of
from examples.lab.clock import Clock, interleaved, ratios
from examples.lab.console import progress_bar
from examples.lab.device import measured_on
from examples.lab.folders import writable_folder
from examples.lab.report import Report, Value
from examples.lab.threads import threads_of_torch
from examples.lab.work.networks import (
    Work,
    cnn,
    mlp,
    mlp_tasks,
    narrow_cnn,
    resnet_block,
    transformer,
)
from examples.lab.work.steps import OPPONENTS, Step, working_step
from lightning_jd.errors import ArgumentError, UnknownNameError

_METHODS = ("mean", "upgrad")
_UNTUNED = 4  # the first steps of a kind of graph check and record themselves
_COLUMNS = {
    "case": "work",
    "plain_us": "plain µs",
    "mean": "mean / plain",
    "must": "must",
    "upgrad": "upgrad / plain",
    "torchjd_mean": "TorchJD mean / plain",
    "torchjd_upgrad": "TorchJD upgrad / plain",
    "plain_kernels": "plain kernels",
    "mean_kernels": "kernels, mean / plain",
    "kernels_must": "must",
    "upgrad_kernels": "kernels, upgrad / plain",
    "torchjd_mean_kernels": "kernels, TorchJD mean / plain",
    "torchjd_upgrad_kernels": "kernels, TorchJD upgrad / plain",
    "mark": "reached",
}


@dataclass(frozen=True)
class Case:
    """One line of the table.

    Attributes:
        tiny: Makes the work whose launches are timed: width 8, batch 8.
        ordinary: Makes the work whose kernels are counted: batch 32.
        must: The largest allowed ratio of a step with the mean to the plain step, tiny.
        kernels_must: The same for the number of kernels, at ordinary sizes.
    """

    tiny: Callable[[], Work]
    ordinary: Callable[[], Work]
    must: float | None = None
    kernels_must: float | None = None


CASES: dict[str, Case] = {
    "mlp": Case(lambda: mlp(8, width=8, inputs=8), lambda: mlp(32), 1.6, 2.2),
    "cnn": Case(lambda: narrow_cnn(8, 8, grouped=False), lambda: cnn("mnist"), 1.3, 2.5),
    "cnn-grouped": Case(lambda: narrow_cnn(8, 8, grouped=True), lambda: cnn("cifar10"), 1.3, 2.5),
    "transformer": Case(lambda: transformer(8, width=8, length=4), transformer, 1.5, 2.0),
    "resnet-block": Case(lambda: resnet_block(8, width=8, size=4), resnet_block),
    "mlp-8-tasks": Case(
        lambda: mlp_tasks(8, batch=8, width=8, inputs=8), lambda: mlp_tasks(8, batch=32)
    ),
}


def launches(
    cases: Sequence[str] = tuple(CASES),
    repeats: int = 100,
    clock: Clock = "cpu",
    torchjd: bool = True,
    device: str = "cpu",
    output: Path = Path("results"),
) -> None:
    """Time a step on tensors so small that only the launches of operations count.

    Width 8 and batch 8, one thread; a step is forward, Gramian, weights and gradients. It takes
    turns with the plain mean-loss step of the same model, and a ratio is the median of the ratios
    of each round. Beside it stands the number of kernels (dispatched operations that are no views)
    of the same graph at ordinary sizes, batch 32, as a multiple of the plain step's. Where torchjd
    is installed it takes part, with the faster of its two engines.

    Args:
        cases: Lines of the table by name, e.g. --cases '[mlp, transformer]'; all by default.
        repeats: Timed rounds for each line.
        clock: "cpu" for processor time, which other programs disturb less, or "wall".
        torchjd: Whether TorchJD takes part; without it the command takes seconds.
        device: Where models and data are: "cpu", "cuda", ...
        output: The folder for launches.json and launches.md.
    """
    for name in cases:
        if name not in CASES:
            raise UnknownNameError.of("cases", name, CASES)
    if repeats < 1 or not cases:
        raise ArgumentError(
            f"`repeats` and `cases` must not be zero or empty, got {repeats} and {list(cases)}."
        )
    writable_folder(output)
    with threads_of_torch(1), measured_on(device):
        with progress_bar(total=len(cases)) as start:
            rows: list[dict[str, Value]] = []
            for name in cases:
                start(name)
                rows.append({"case": name, **measure(CASES[name], repeats, clock, torchjd)})
        missed = [str(row["case"]) for row in rows if row["mark"] == "missed"]
        notes = (
            f"Width 8, batch 8, one thread, {clock} time, medians of {repeats} rounds; kernels at "
            "batch 32. What is promised is promised for the mean: on a CPU the program of UPGrad "
            "is solved by the host, which costs time but no kernels. Kernels are those of the "
            "device that is measured: a CPU may cut patches of images into pieces that fit its "
            "caches, where an accelerator takes them whole.",
            f"More than it must be: {', '.join(missed) or 'none'}.",
        )
        title = "Where only launches count: a step against a plain step"
        report = Report("launches", title, _COLUMNS, rows, notes)
    report.publish(output)


def measure(case: Case, repeats: int, clock: Clock, torchjd: bool = True) -> dict[str, Value]:
    """One line of the table, without its name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchJD's vmap tells what it costs, as the table does
        row = _timed(case, repeats, clock, torchjd) | _counted(case, torchjd)
    reached = [
        float(row[key] or 0) <= must
        for key, must in (("mean", case.must), ("mean_kernels", case.kernels_must))
        if must is not None
    ]
    mark = None if not reached else "yes" if all(reached) else "missed"
    return {**row, "must": case.must, "kernels_must": case.kernels_must, "mark": mark}


def _timed(case: Case, repeats: int, clock: Clock, torchjd: bool) -> dict[str, Value]:
    steps, spread, plain_us = _steps(case.tiny, torchjd), {}, []
    plain = steps.pop("plain")
    for name, step in steps.items():
        # In pairs: what a third engine leaves in the caches is no part of anybody's training.
        pair = {"plain": plain, name: step}
        found = interleaved(pair, repeats=repeats, warmup=10, clock=clock)
        spread[name] = ratios(found[name], found["plain"])
        plain_us.append(1e6 * found["plain"].median)
    medians = {name: timing.median for name, timing in spread.items()}
    row: dict[str, Value] = {"plain_us": min(plain_us), **medians}
    for name, timing in spread.items():
        row |= {f"{name}_lower": timing.lower, f"{name}_upper": timing.upper}
    return row | {f"torchjd_{method}": _fastest(medians, method) for method in _METHODS}


def _counted(case: Case, torchjd: bool) -> dict[str, Value]:
    steps = _steps(case.ordinary, torchjd)
    counts = {}
    for name, step in steps.items():
        # right before: TorchJD's engines add hooks, which the next step of ours has to check
        for _ in range(_UNTUNED):
            step()
        counts[name] = kernels_of(step)
    plain = counts.pop("plain")
    shares = {name: count / plain for name, count in counts.items()}
    row: dict[str, Value] = {"plain_kernels": plain}
    row |= {f"{name}_kernels": value for name, value in shares.items()}
    return row | {f"torchjd_{method}_kernels": _fastest(shares, method) for method in _METHODS}


def _fastest(found: Mapping[str, float], method: str) -> float | None:
    """Of TorchJD's engines, or ``None`` if none of them runs."""
    theirs = [found.get(f"{engine}_{method}") for engine in OPPONENTS]
    return min((value for value in theirs if value is not None), default=None)


def _steps(build: Callable[[], Work], torchjd: bool) -> dict[str, Step]:
    """The plain step, ours by the name of the method, and those of TorchJD by engine and method."""
    candidates = {"plain": working_step("plain", build, "mean")}
    for method in _METHODS:
        candidates[method] = working_step("ours", build, method)
        for engine in OPPONENTS if torchjd else ():
            candidates[f"{engine}_{method}"] = working_step(engine, build, method)
    return {name: step for name, step in candidates.items() if step is not None}

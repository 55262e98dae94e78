"""``speed``: the paper's table of seconds per epoch, on this machine."""

import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from typing_extensions import override

from examples.lab.clock import CLOCKS, Clock, Timing, check_clock, ratio
from examples.lab.console import progress_bar
from examples.lab.device import here, measured_on, name_of_device, wait_for_device
from examples.lab.folders import writable_folder
from examples.lab.report import Report, Value
from examples.lab.store import Store
from examples.lab.studies._settings import PAPER_AGGREGATORS, Setting, names_of
from examples.lab.threads import threads_of_torch
from examples.lab.trainer import bare_trainer, quiet
from examples.lab.work.module import WorkModule
from examples.lab.work.networks import Work, cnn
from examples.lab.work.paper import INPUT_SHAPES, Architecture
from examples.lab.work.steps import make_step
from lightning_jd.errors import ArgumentError
from lightning_jd.surfaces.lightning_pytorch import JacobianDescent

_STEPS_PER_EPOCH = 32  # 1,024 images in batches of 32
_WARMUP = 2
_SGD = "SGD"
_MUST = 1.4

#: Seconds per epoch in the paper, on an NVIDIA L4: SVHN, CIFAR-10, EuroSAT, MNIST.
PAPER_SECONDS = {
    _SGD: (0.79, 0.50, 0.81, 0.47),
    "mean": (1.41, 1.76, 2.93, 1.64),
    "mgda": (5.50, 5.22, 6.91, 5.22),
    "dualproj": (1.51, 1.88, 3.02, 1.76),
    "pcgrad": (2.78, 3.13, 4.18, 3.01),
    "graddrop": (1.57, 1.90, 3.06, 1.78),
    "imtlg": (1.48, 1.79, 2.94, 1.69),
    "cagrad": (1.93, 2.26, 3.42, 2.17),
    "rgw": (1.42, 1.76, 2.89, 1.73),
    "nashmtl": (7.88, 8.12, 9.33, 7.91),
    "alignedmtl": (1.53, 1.98, 2.97, 1.71),
    "upgrad": (1.80, 2.01, 3.21, 1.90),
}


def speed(
    architectures: Sequence[Architecture] = tuple(INPUT_SHAPES),
    aggregators: Sequence[str] | str = PAPER_AGGREGATORS,
    repeats: int = 5,
    steps: int = 8,
    threads: int = 2,
    clock: Clock = "wall",
    torchjd: bool = True,
    device: str = "cpu",
    output: str = "results/speed",
) -> None:
    """Time an epoch of Jacobian descent against one of SGD, as the paper's table does.

    Everything runs inside of Trainer.fit, with batches of 32 images: plain SGD on the mean loss,
    this package's callback with each aggregator, and TorchJD in manual optimisation (its Gramian
    engine; its Jacobian for GradDrop). All take turns, round after round, and a number is the
    median over rounds of the ratio to the SGD of the same round. Beside them are the ratios of the
    paper's table, measured there on a GPU with the first version of TorchJD. An architecture that
    is finished is kept in rounds.jsonl and not repeated. Writes speed.json and speed.md.

    Args:
        architectures: The networks, of "svhn", "cifar10", "eurosat" and "mnist".
        aggregators: The methods, e.g. --aggregators mean, or --aggregators '[mean, upgrad]'; by
            default all eleven.
        repeats: The number of rounds.
        steps: Timed steps of each method in a round.
        threads: Threads of torch.
        clock: "wall", or "cpu" for the processor time of all threads, which other programs disturb
            less.
        torchjd: Whether to time TorchJD too, if it is installed.
        device: Where models and data are: "cpu", "cuda", ...
        output: The folder for the results.
    """
    aggregators = names_of(aggregators)
    if min(repeats, steps) < 1 or not architectures or not aggregators:
        raise ArgumentError(
            "`repeats` and `steps` must be at least 1, and `architectures` and `aggregators` not "
            f"empty, got {repeats}, {steps}, {list(architectures)} and {list(aggregators)}."
        )
    with_torchjd = torchjd and importlib.util.find_spec("torchjd") is not None
    kept = _rounds(writable_folder(output) / "rounds.jsonl")
    with threads_of_torch(threads), measured_on(device):
        check_clock(clock)
        with progress_bar(total=len(architectures) * repeats) as start:
            found = {}
            for name in architectures:
                settings: list[object] = [repeats, steps, threads, clock, with_torchjd]
                if here().type != "cpu":  # those of a CPU are stored without it
                    settings.append(name_of_device())
                key = json.dumps([name, list(aggregators), *settings])
                if key not in kept:
                    candidates = _candidates(name, aggregators, with_torchjd)
                    announce = partial(start, name)
                    kept.add(key, in_turns(candidates, repeats, steps, clock, announce))
                found[name] = kept[key]
        notes = (
            f"Ratios to SGD, medians of {repeats} rounds of {steps} steps by the {clock} clock, "
            f"{threads} thread(s). First the package, then TorchJD in the same rounds, then the "
            "paper (on a GPU). A dash: TorchJD needs a solver for it that is not installed, or has "
            f"no such method. UPGrad is to be at most {_MUST} everywhere.",
        )
        report = Report("speed", _TITLE, _columns(architectures), _rows(found, aggregators), notes)
    report.publish(output)


_TITLE = "Seconds per epoch inside of Trainer.fit, as ratios to SGD"


def in_turns(
    candidates: Mapping[str, Callable[[], tuple[WorkModule, list[Callback]]]],
    repeats: int,
    steps: int,
    clock: Clock,
    start: Callable[[], None],
) -> dict[str, Timing]:
    """Seconds per epoch of each candidate, in rounds whose order alternates."""
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    for r in range(repeats):
        start()
        order = list(candidates.items())
        for name, build in reversed(order) if r % 2 else order:
            samples[name].append(_seconds_per_epoch(*build(), steps, clock))
    return {name: Timing(tuple(durations)) for name, durations in samples.items()}


def _seconds_per_epoch(
    module: WorkModule, callbacks: list[Callback], steps: int, clock: Clock
) -> float:
    batches = _Stopwatch(steps, CLOCKS[clock])
    with quiet():
        bare_trainer(1, callbacks).fit(module, batches)
    return _STEPS_PER_EPOCH * sum(batches.durations[_WARMUP:]) / steps


class _Stopwatch:
    """A loader that times what happens between two batches: one whole step."""

    def __init__(self, steps: int, now: Callable[[], float]) -> None:
        self._steps, self._now = steps + _WARMUP, now
        self.durations: list[float] = []

    def __len__(self) -> int:
        return self._steps + 1  # the Trainer does not come back after the last batch

    def __iter__(self) -> Iterator[int]:
        for i in range(len(self)):
            wait_for_device()
            begin = self._now()
            yield i
            wait_for_device()
            self.durations.append(self._now() - begin)


class _TorchJDModule(WorkModule):
    """Jacobian descent by TorchJD, in manual optimisation, as its documentation shows."""

    def __init__(self, work: Work, step: Callable[[], None]) -> None:
        super().__init__(work, plain=False)
        self.automatic_optimization = False
        self._step = step

    @override
    def training_step(self, batch: int) -> None:
        self._step()
        self.optimizers().step()  # type: ignore[union-attr]


def _candidates(
    name: Architecture, aggregators: Sequence[str], with_torchjd: bool
) -> dict[str, Callable[[], tuple[WorkModule, list[Callback]]]]:
    def plain() -> tuple[WorkModule, list[Callback]]:
        return WorkModule(_work(name), plain=True), []

    def ours(aggregator: str) -> tuple[WorkModule, list[Callback]]:
        return WorkModule(_work(name), plain=False), [JacobianDescent(aggregator)]

    def theirs(aggregator: str) -> tuple[WorkModule, list[Callback]]:
        work = _work(name)
        step = _torchjd_step(work, aggregator)
        assert step is not None
        return _TorchJDModule(work, step), []

    found: dict[str, Callable[[], tuple[WorkModule, list[Callback]]]] = {_SGD: plain}
    for aggregator in aggregators:
        found[aggregator] = lambda a=aggregator: ours(a)  # type: ignore[misc]
        if with_torchjd and _torchjd_step(_work(name), aggregator) is not None:
            found[f"torchjd {aggregator}"] = lambda a=aggregator: theirs(a)  # type: ignore[misc]
    return found


def _work(name: Architecture) -> Work:
    torch.manual_seed(0)
    return cnn(name).to(here())


def _torchjd_step(work: Work, aggregator: str) -> Callable[[], None] | None:
    engine = "autojac" if aggregator == "graddrop" else "autogram"
    try:
        return make_step(engine, work, aggregator)
    except KeyError:  # a method that it does not have in this form
        return None


#: Everything that the numbers depend on, as JSON, to the timings by name.
_Rounds = Store[str, dict[str, Timing]]


def _rounds(path: Path) -> _Rounds:
    return Store(path, _written, _read)


def _written(key: str, found: Mapping[str, Timing]) -> Any:
    return [json.loads(key), {name: list(timing.samples) for name, timing in found.items()}]


def _read(entry: Any) -> tuple[str, dict[str, Timing]]:
    key, samples = entry
    return json.dumps(key), {name: Timing(tuple(found)) for name, found in samples.items()}


def _columns(architectures: Sequence[Architecture]) -> dict[str, str]:
    columns = {"method": "method"}
    for name in architectures:
        columns |= {f"{name}_seconds": f"{name} seconds", name: name}
        columns |= {f"{name}_torchjd": "TorchJD", f"{name}_paper": "paper"}
    return columns | {"mark": f"at most {_MUST}"}


def _rows(
    found: Mapping[Architecture, Mapping[str, Timing]], aggregators: Sequence[str]
) -> list[dict[str, Value]]:
    rows: list[dict[str, Value]] = []
    for method in (_SGD, *aggregators):
        row: dict[str, Value] = {"method": method if method == _SGD else Setting(method).label}
        row["method"] = str(row["method"]).removesuffix(" (SGD)")
        worst = 0.0
        for name, timings in found.items():
            sgd, place = timings[_SGD], list(INPUT_SHAPES).index(name)
            row[f"{name}_seconds"] = timings[method].median
            row[name] = ratio(timings[method], sgd)
            worst = max(worst, ratio(timings[method], sgd))
            if f"torchjd {method}" in timings:
                row[f"{name}_torchjd"] = ratio(timings[f"torchjd {method}"], sgd)
            if method in PAPER_SECONDS:
                row[f"{name}_paper"] = PAPER_SECONDS[method][place] / PAPER_SECONDS[_SGD][place]
        if method == "upgrad":
            row["mark"] = "met" if worst <= _MUST else "missed"
        rows.append(row)
    return rows

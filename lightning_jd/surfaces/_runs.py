"""Runs that differ in one thing only: one after the other or side by side, and resumable.

A run has a folder. Its page and its data are those of JDReport; ``outcome.json`` is written last,
so a folder with it is a run that is finished.
"""

from __future__ import annotations

import json
import logging
import math
import multiprocessing
import os
import re
import signal
import statistics
import sys
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lightning_jd.aggregators import resolve
from lightning_jd.errors import ArgumentError, SetupError
from lightning_jd.report import RUN_FILE, Run
from lightning_jd.surfaces._namespace import SURFACES, surfaces_for, surfaces_in_use
from lightning_jd.surfaces.callback import JacobianDescent
from lightning_jd.surfaces.report_callback import JDReport

_OUTCOME = "outcome.json"
_RECORDED = 200  # steps of a run, at least (or all of them)
_SECONDS = 0.2  # between two messages on the progress of a run
_SEEDS = ("PL_GLOBAL_SEED", "PL_SEED_WORKERS")  # what `seed_everything` leaves in the environment


@dataclass(frozen=True, eq=False)  # a method may be a dict, which has no hash
class Job:
    """One run.

    Attributes:
        label: What it is called.
        method: What ``JacobianDescent`` takes as its aggregator.
        seed: Of initial parameters (if they are drawn) and of the order of the data.
    """

    label: str
    method: Any
    seed: int

    @property
    def folder(self) -> str:
        """The name of its folder: readable, and no two labels have the same."""
        words = re.sub(r"[^\w.=-]+", "_", self.label).strip("_")[:60]
        return f"{words}-{zlib.crc32(self.label.encode()):08x}-{self.seed}"


@dataclass
class Outcome:
    """What a run found.

    Attributes:
        label: The label of its job.
        seed: Its seed.
        settings: What it was run with, in words; a resumed comparison must have the same.
        error: Why it did not finish; empty if it did.
        metrics: What the module logs when it is validated, after the last step.
        seconds: The median duration of a step.
        start: A checksum of the initial parameters and of the first batch.
        run: The curves that JDReport has recorded.
    """

    label: str
    seed: int
    settings: str
    error: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    start: str = ""
    run: Run = field(default_factory=Run)

    def write(self, folder: Path) -> None:
        """Write it in one stroke, without the curves, which JDReport has written."""
        folder.mkdir(parents=True, exist_ok=True)
        content = {**asdict(replace(self, run=Run())), "run": None}
        temporary = folder / f"{_OUTCOME}.{os.getpid()}"
        temporary.write_text(json.dumps(content) + "\n", encoding="utf-8")
        temporary.replace(folder / _OUTCOME)

    @classmethod
    def read(cls, folder: Path) -> Outcome | None:
        """The outcome in a folder; ``None`` if there is none."""
        try:
            content = json.loads((folder / _OUTCOME).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        file = folder / RUN_FILE
        return cls(**{**content, "run": Run.read(file) if file.is_file() else Run()})


class Built(NamedTuple):
    """What a run needs, made anew for each.

    Attributes:
        trainer: The Trainer.
        module: The module.
        data: The arguments of ``fit`` beside the module.
    """

    trainer: Any
    module: Any
    data: dict[str, Any]


Tell = Callable[[float], object]  # which share of a run is done


@dataclass(frozen=True)
class Plan:
    """How the runs of a comparison are made.

    Attributes:
        build: Makes the Trainer, the module and the data of a run, from its seed.
        options: Of ``JacobianDescent``, beside the aggregator. If there are none, and the Trainer
            or the module brings Jacobian descent, its options are kept.
        settings: Everything but the method, in words.
    """

    build: Callable[[int], Built]
    options: Mapping[str, Any]
    settings: str

    def train(self, job: Job, folder: Path, tell: Tell) -> Outcome:
        """Train, validate and write the outcome; an error is an outcome, too."""
        outcome = Outcome(job.label, job.seed, self.settings)
        try:
            with own_seed(job.seed) as reseed:
                self._train(job, folder, tell, outcome, reseed)
        except Exception as error:
            outcome.error = f"{type(error).__name__}: {error}".partition("\n")[0]
        outcome.write(folder)
        return Outcome.read(folder) or outcome

    def _train(
        self, job: Job, folder: Path, tell: Tell, outcome: Outcome, reseed: Callable[[], object]
    ) -> None:
        trainer, module, data = self.build(job.seed)
        if trainer.world_size > 1:
            raise SetupError(
                f"A run that is compared must use one device, got {trainer.world_size}. Set "
                "devices=1; `workers` trains several runs at a time."
            )
        surfaces = surfaces_for(module)
        report = surfaces.JDReport(str(folder), stationarity=False, title=job.label)
        clock = _clock(surfaces, tell, outcome, report)
        callbacks = [each for each in trainer.callbacks if not isinstance(each, JacobianDescent)]
        descent = self.descent(job, surfaces, trainer, module)
        trainer.callbacks[:] = [clock, descent, report, *callbacks]
        reseed()  # not everyone draws as many random numbers while a run is built
        with _ctrl_c(trainer):
            trainer.fit(module, **data)
        outcome.seconds = statistics.median(clock.seconds) if clock.seconds else 0.0
        if trainer.enable_validation:
            data.pop("train_dataloaders", None)
            if (loaders := data.pop("val_dataloaders", None)) is not None:
                data["dataloaders"] = loaders
            with _ctrl_c(trainer):
                found = trainer.validate(module, **data, verbose=False)
            outcome.metrics = {name: value for part in found for name, value in part.items()}

    def descent(self, job: Job, surfaces: Any, trainer: Any, module: Any) -> Any:
        """Jacobian descent with the method of the job, in the place of what there is."""
        cls, method = surfaces.JacobianDescent, deepcopy(job.method)
        known = [each for each in trainer.callbacks if isinstance(each, JacobianDescent)]
        if (flag := getattr(module, "jacobian_descent", None)) is not None:
            known.append(cls.of(flag))
            module.jacobian_descent = None
        if self.options or not known:
            return cls(method, **self.options)
        return cls.with_settings(replace(known[0].settings, aggregator=resolve(method)))


class _Clock:
    """Times the steps, tells the progress, and takes the checksum of the start."""

    def __init__(self, tell: Tell, outcome: Outcome, report: JDReport) -> None:
        self.seconds: list[float] = []
        self._tell, self._outcome, self._report, self._steps = tell, outcome, report, math.inf
        self._begin = self._told = time.perf_counter()
        self._parameters = ""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._parameters = _checksum(pl_module.state_dict())
        self._steps = trainer.estimated_stepping_batches
        if math.isfinite(self._steps):
            self._report.every_n_steps = max(1, int(self._steps) // _RECORDED)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, *_: Any) -> None:
        if not self.seconds:
            self._outcome.start = self._parameters + _checksum(batch)
        self._begin = time.perf_counter()

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        now = time.perf_counter()
        self.seconds.append(now - self._begin)
        if now - self._told > _SECONDS:
            self._told = now
            self._tell(min(trainer.global_step / max(self._steps, 1), 1.0))


def _clock(surfaces: Any, tell: Tell, outcome: Outcome, report: JDReport) -> Any:
    callback = import_module(package_of(surfaces)).Callback
    return type("StepClock", (_Clock, callback), {})(tell, outcome, report)


def package_of(surfaces: Any) -> str:
    """The package of Lightning that our classes are derived from."""
    return next(package for package, ours in SURFACES.items() if ours == surfaces.__name__)


def _checksum(tensors: Any) -> str:
    found = 0
    for leaf in tree_leaves(tensors):
        if isinstance(leaf, Tensor) and leaf.numel():
            data = leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            found = zlib.crc32(data.numpy().tobytes(), found)
    return f"{found:08x}"


@contextmanager
def own_seed(seed: int) -> Iterator[Callable[[], object]]:
    """Seeds all random numbers and silences Lightning; restores afterwards what was before."""
    package = package_of(surfaces_in_use())
    seed_everything = import_module(package).seed_everything
    isolate_rng = import_module(f"{package}.utilities.seed").isolate_rng
    before = {name: os.environ.get(name) for name in _SEEDS}
    log = logging.getLogger(package)
    level = log.level
    with isolate_rng(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*LeafSpec")  # of torch, used by Lightning
        warnings.filterwarnings("ignore", ".*does not have many workers")
        warnings.filterwarnings("ignore", ".*number of training batches .* is smaller than")
        try:
            log.setLevel(logging.WARNING)  # each run would tell which devices there are
            seed_everything(seed, workers=True, verbose=False)
            yield lambda: seed_everything(seed, workers=True, verbose=False)
        finally:
            log.setLevel(level)
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


@contextmanager
def _ctrl_c(trainer: Any) -> Iterator[None]:
    """Ctrl-C stays a KeyboardInterrupt; Lightning ignores the signal from then on, and exits."""
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as error:
        if trainer.interrupted:
            raise KeyboardInterrupt from error
        raise
    finally:
        if is_main:
            signal.signal(signal.SIGINT, handler)


def run_all(plan: Plan, jobs: Sequence[Job], folder: Path, workers: int) -> list[Outcome]:
    """The outcomes of all jobs, in their order; what is finished in the folder is not run again.

    Args:
        plan: How a run is made.
        jobs: The runs.
        folder: Holds one folder for each run.
        workers: How many runs at a time; more than one are processes of one thread each.

    Raises:
        ArgumentError: If the folder holds runs with other settings.
    """
    from tqdm import tqdm  # type: ignore[import-untyped]  # Lightning needs it, too

    if workers < 1:
        raise ArgumentError(f"`workers` must be at least 1, got {workers}.")
    found = {job: _finished(plan, job, folder) for job in jobs}
    missing = [job for job in jobs if found[job] is None]
    done = dict.fromkeys(missing, 0.0)
    style = "{desc}{percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
    with tqdm(total=len(missing), bar_format=style, disable=not missing) as bar:

        def tell(job: Job, share: float) -> None:
            done[job] = max(done[job], share)
            bar.set_description_str(f"{job.label}, seed {job.seed}: ", refresh=False)
            bar.update(sum(done.values()) - bar.n)

        if workers == 1:
            for job in missing:
                found[job] = plan.train(job, folder / job.folder, partial(tell, job))
                tell(job, 1.0)
        else:
            found |= _side_by_side(plan, missing, folder, workers, tell)
    return [outcome for job in jobs if (outcome := found[job]) is not None]


def _finished(plan: Plan, job: Job, folder: Path) -> Outcome | None:
    """The outcome that is there; a run that has failed is tried again."""
    outcome = Outcome.read(folder / job.folder)
    if outcome is not None and outcome.settings != plan.settings:
        raise ArgumentError(
            f"`folder` must hold runs with the same settings, got {str(folder)!r} with "
            f"{outcome.settings} instead of {plan.settings}. Choose another folder, or delete it."
        )
    return outcome if outcome is not None and not outcome.error else None


def _side_by_side(
    plan: Plan,
    jobs: Sequence[Job],
    folder: Path,
    workers: int,
    tell: Callable[[Job, float], object],
) -> dict[Job, Outcome | None]:
    """One process for each run, so many at a time."""
    # A copy of this process can train what is defined in a notebook; CUDA does not survive it.
    can_fork = sys.platform == "linux" and not torch.cuda.is_initialized()
    method = "fork" if can_fork else "spawn"
    context = multiprocessing.get_context(method)
    waiting = list(reversed(jobs))
    running: dict[Any, tuple[Job, Any]] = {}
    found: dict[Job, Outcome | None] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                job = waiting.pop()
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(  # type: ignore[attr-defined]  # both contexts have it
                    target=_work, args=(plan, job, folder / job.folder, theirs), daemon=False
                )
                with warnings.catch_warnings():  # Python 3.12 warns of a fork beside threads
                    warnings.simplefilter("ignore", DeprecationWarning)
                    process.start()
                theirs.close()
                running[ours] = (job, process)
            for ready in wait(list(running)):
                messages: Any = ready
                job, process = running[messages]
                try:
                    tell(job, messages.recv())
                except EOFError:  # it has ended
                    process.join()
                    del running[messages]
                    found[job] = Outcome.read(folder / job.folder) or Outcome(
                        *(job.label, job.seed, plan.settings),
                        error=f"the process ended with status {process.exitcode}",
                    )
                    tell(job, 1.0)
    finally:
        for _, process in running.values():
            process.terminate()
    return found


def _work(plan: Plan, job: Job, folder: Path, messages: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    plan.train(job, folder, messages.send)


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)

"""JDReport, without the base class of either Lightning package."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable
from datetime import datetime
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar

import torch
from typing_extensions import override

from lightning_jd import __version__
from lightning_jd.errors import ArgumentError, SetupError
from lightning_jd.metrics import PairwiseCosine
from lightning_jd.report import RUN_FILE, Cosines, Run, page
from lightning_jd.surfaces._observe import (
    StepClock,
    is_due,
    steps_done,
    tasks_of,
    values_of,
    with_tasks,
)
from lightning_jd.surfaces._promise import facts_of
from lightning_jd.surfaces._session import Session
from lightning_jd.surfaces.callback import JacobianDescent

_SECONDS = 30.0  # between two pages while a run goes on
_MOST_EXAMPLES = 20


class JDReport:
    """Writes an HTML report of a run with Jacobian descent.

    It requires Jacobian descent in the same Trainer (the callback, a strategy or the module flag);
    ``aggregator="mean"`` shows the conflict of plain training. It writes the page
    ``jd_report.html`` and its data ``jd_run.json`` after epochs (at most twice a minute), at the
    end of the fit, and after an error. On the host of one process, five of the first steps run
    the backward pass of plain training too, to compare the cost. At the end it prints the path. A
    resumed run continues its curves. If the folder is not writable, it warns at the start and the
    training goes on.

    Args:
        folder: The output folder; the Trainer's ``log_dir`` (or ``default_root_dir``) by default.
        every_n_steps: Record each of the first n steps, then every n-th.
        stationarity: Whether to record the distance to weak stationarity, which solves a small
            quadratic program on the host.
        title: The heading of the page.

    Raises:
        ArgumentError: If ``every_n_steps`` is not positive.
    """

    #: The base class, by its place in either of Lightning's packages.
    lightning_base: ClassVar[str] = "callbacks.Callback"
    #: Prints a line on the first process; each package brings its own.
    _inform: ClassVar[Callable[[str], object]] = print

    def __init__(
        self,
        folder: str | None = None,
        every_n_steps: int = 10,
        stationarity: bool = True,
        title: str = "Jacobian descent report",
    ) -> None:
        super().__init__()
        if every_n_steps < 1:
            raise ArgumentError(f"`every_n_steps` must be at least 1, got {every_n_steps}.")
        self.folder = folder
        self.every_n_steps = every_n_steps
        self.stationarity = stationarity
        self.title = title
        self._run = Run()
        self._cosines: PairwiseCosine | None = None
        self._clock = StepClock()
        self._seen = 0
        self._written = -math.inf
        self._target: Path | None = None  # where nothing can be written, there is none

    @override
    def __repr__(self) -> str:
        """The folder and the number of recorded steps."""
        folder = self.folder if self._target is None else str(self._target)
        steps = max((round(sum(track.counts)) for track in self._run.tracks.values()), default=0)
        return f"{type(self).__name__}(folder={folder!r}, recorded={steps})"

    def _repr_html_(self) -> str:
        """The page, for a notebook; the ``repr`` before the first steps."""
        if not self._run.tracks:
            return f"<pre>{escape(repr(self))}</pre>"
        content = escape(page(self.run, self.title))
        return f'<iframe srcdoc="{content}" width="100%" height="600"></iframe>'

    @property
    def run(self) -> Run:
        """The data recorded so far."""
        if self._cosines is not None:
            rows = self._cosines.compute().tolist()
            known = [[None if math.isnan(value) else value for value in row] for row in rows]
            self._run.cosines = Cosines(list(self._cosines.names), known)
        return self._run

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Find the JacobianDescent callback, and check the output folder."""
        if trainer.global_step == 0:  # a new run; one that is resumed has loaded its state
            self._run, self._cosines = Run(), None
        session = self._session(trainer)
        if session is None:
            raise SetupError(
                "JDReport requires Jacobian descent, got a Trainer without it. Add "
                "JacobianDescent('upgrad') to the callbacks, or JacobianDescent('mean') to see "
                "the conflict of plain training."
            )
        # Here, because all processes have to ask for the folder of the logger together.
        target = Path(self.folder or trainer.log_dir or trainer.default_root_dir)
        self._target = target if not trainer.is_global_zero or _is_writable(target) else None
        aggregator = session.settings.aggregator
        self._run.aggregator = aggregator.label
        self._run.about = _about(trainer, pl_module)
        self._seen = session.steps
        session.measures_plain = trainer.world_size == 1

    def on_train_batch_start(self, *_: Any) -> None:
        """Start the timer."""
        self._clock.start()

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Record the update of this batch, if it is due."""
        session = self._session(trainer)
        if session is None or session.steps == self._seen:
            return
        self._seen = session.steps
        updates = [update for update in session.passes() if update.report.names]
        # Each of the first steps too, so that short runs are seen at all.
        every = 1 if steps_done(trainer) < self.every_n_steps else self.every_n_steps
        if not is_due(trainer, every):
            return
        for update in updates:  # of several, the page shows the mean
            shares = self._clock.shares(update.report)
            values = values_of(update, stationarity=self.stationarity)
            self._run.method = facts_of(session.settings.aggregator, update.seen.kind)
            if (plain := session.plain_milliseconds) is not None and len(updates) == 1:
                values["cost"] = self._clock.cost(update.report, plain)
            self._run.add(steps_done(trainer), shares | values)
            if (tasks := tasks_of(update)) is not None and update.report.known_gramian is not None:
                gramian = update.report.known_gramian
                self._cosines = with_tasks(PairwiseCosine, self._cosines, tasks.names)
                self._cosines.to(gramian.device).update(gramian, tasks.names)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the page, at most twice a minute."""
        if time.monotonic() - self._written > _SECONDS:
            self._write(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the page and print its path."""
        if (path := self._write(trainer)) is not None:
            type(self)._inform(f"JDReport has written {path}")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Write the page of the failed run."""
        self._write(trainer)

    def state_dict(self) -> dict[str, Any]:
        """The curves, in types that ``weights_only=True`` can load."""
        cosines = self._cosines
        return {
            "run": self.run.to_dict(),
            "cosines": None
            if cosines is None
            else {"total": cosines.total.cpu(), "count": cosines.count.cpu()},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the curves from a checkpoint."""
        self._run = Run.from_dict(state_dict["run"])
        if state_dict["cosines"] is not None and self._run.cosines is not None:
            self._cosines = PairwiseCosine(self._run.cosines.names, sync_on_compute=False)
            self._cosines.total.copy_(state_dict["cosines"]["total"])
            self._cosines.count.copy_(state_dict["cosines"]["count"])

    def _session(self, trainer: Any) -> Session | None:
        callback = _callback_of(trainer)
        return None if callback is None else callback._session

    def _write(self, trainer: Any) -> Path | None:
        """The page, if it was written."""
        if not trainer.is_global_zero or not self._run.tracks or self._target is None:
            return None
        self._written = time.monotonic()
        path, run = self._target / "jd_report.html", self.run
        if (callback := _callback_of(trainer)) is not None and callback._examples is not None:
            run.examples = callback._examples.worst(_MOST_EXAMPLES)
        run.about["steps"] = str(trainer.global_step)
        try:
            self._target.mkdir(parents=True, exist_ok=True)
            run.write(self._target / RUN_FILE)
            path.write_text(page(run, self.title), encoding="utf-8")
        except OSError as error:  # a disk that is full
            _warn(self._target, error)
            return None
        return path


def _callback_of(trainer: Any) -> JacobianDescent | None:
    """The callback that is at work."""
    for callback in trainer.callbacks:
        if isinstance(callback, JacobianDescent) and callback._session is not None:
            return callback
    return None


def _is_writable(folder: Path) -> bool:
    """Whether the report can be written there; otherwise a warning says why not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(f"no permission to write to {str(folder)!r}")
    except OSError as error:
        _warn(folder, error)
        return False
    return True


def _warn(folder: Path, error: OSError) -> None:
    warnings.warn(
        f"JDReport cannot write to its folder {str(folder)!r}: {error}. The training goes on "
        "without a report; set `folder` to a writable one.",
        RuntimeWarning,
        stacklevel=3,
    )


def _about(trainer: Any, module: Any) -> dict[str, str]:
    """Module, parameters, optimizers, batch size, devices, versions, seed and date of a run."""
    loader = trainer.train_dataloader
    seed = os.environ.get("PL_GLOBAL_SEED")
    lightning = type(trainer).__module__.partition(".")[0]
    found = {
        "module": type(module).__name__,
        "parameters": f"{sum(p.numel() for p in module.parameters() if p.requires_grad):,}",
        "optimizer": ", ".join(map(_optimizer, trainer.optimizers)),
        "batch size": str(getattr(loader, "batch_size", None) or "unknown"),
        "devices": f"{trainer.world_size} x {trainer.strategy.root_device.type}",
        "precision": str(trainer.precision),
        "versions": f"lightning_jd {__version__}, torch {torch.__version__}, "
        f"{lightning} {_version(lightning)}",
        "seed": seed if seed is not None else "not set by seed_everything",
        "started": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
    }
    return {name: text for name, text in found.items() if text}


def _optimizer(optimizer: Any) -> str:
    rates = sorted({float(group["lr"]) for group in optimizer.param_groups if "lr" in group})
    return f"{type(optimizer).__name__} (lr {', '.join(f'{rate:g}' for rate in rates)})"


def _version(package: str) -> str:
    try:
        return version(package.replace("_", "-"))
    except PackageNotFoundError:
        return "unknown"
